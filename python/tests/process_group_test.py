# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests groups, handles of operations and failures of the backend stretto."""

from __future__ import annotations

import ctypes
import datetime
import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

import ranks
import torch
import torch.distributed as dist

CPU = torch.device("cpu")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening_ports() -> set[int]:
    """Returns the ports on which this process listens."""
    own = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            own.add(os.readlink(entry.path))
        except FileNotFoundError:
            pass  # The descriptor of the folder itself is closed by now.
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(int(fields[1].split(":")[1], 16))
    return found


def sum_of_ranks(size: int, group=None) -> None:
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=group)
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    assert tensor.item() == sum(members), (tensor, members)


class StoreOfAProgram(dist.Store):
    """A store written in Python, without compare_set()."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def add(self, key: str, amount: int) -> int:
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)


class StartTest(unittest.TestCase):
    def test_ways_to_meet(self) -> None:
        """The ranks meet by file, by TCP, by variables, and by a given store, also with a backend
        for GPUs, and more than once in the same store."""
        port = free_port()

        def body(rank: int, size: int, path: str) -> None:
            place = {"rank": rank, "world_size": size}
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            store = dist.TCPStore("127.0.0.1", free_port_of_job, size, rank == 0)
            own = StoreOfAProgram(store)
            ways = [
                {"init_method": f"file://{path}", **place},
                {"init_method": f"tcp://127.0.0.1:{port}", **place},
                {"store": store, **place},
                # The store and the names in it are the same as in the previous turn.
                {"store": store, **place},
                {"store": own, **place},
                {"init_method": "env://", **place},
            ]
            names = ["stretto", "cpu:stretto", "cpu:stretto,cuda:gloo"]
            for name, way in zip([*names, *names], ways):
                dist.init_process_group(name, **way)
                assert dist.group.WORLD._get_backend(CPU).name() == "stretto"
                sum_of_ranks(size)
                # Rank 0 listens for PyTorch's store only; on one host, stretto opens no ports of
                # its own.
                allowed = {port, free_port_of_job} if rank == 0 else set()
                assert "gloo" in name or listening_ports() <= allowed, listening_ports()
                dist.destroy_process_group()

        free_port_of_job = free_port()
        ranks.run(body)

    def test_who_does_not_hold_the_job_key_is_refused(self) -> None:
        """The job key is not in PyTorch's store, which anybody may read."""

        def body(rank: int, size: int, path: str) -> str:
            os.environ["STRETTO_JOB_KEY"] = "7" * 64
            ranks.start(path, rank, size)
            sum_of_ranks(size, dist.new_group())
            dist.barrier()
            dist.destroy_process_group()
            if rank == 1:
                del os.environ["STRETTO_JOB_KEY"]
            return ranks.failure(lambda: ranks.start(f"{path}-again", rank, size))

        for text in ranks.run(body):
            self.assertIn("STRETTO_JOB_KEY is not the same there", text)

    def test_two_hosts(self) -> None:
        """Network namespaces without a default route: the store's address says by which network
        ranks meet. Each host has two ranks, which share memory."""
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
        import namespaces

        network = namespaces.Network(f"pg{os.getpid() % 100000}")
        self.addCleanup(network.remove)
        try:
            network.make()
        except namespaces.NetworkError as error:
            self.skipTest(str(error))

        def body(rank: int, size: int, path: str) -> str:
            import stretto

            with open(f"/run/netns/{network.space(rank // 2)}", "rb") as space:
                assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
            meeting = f"tcp://{network.address(0)}:29500"
            dist.init_process_group("stretto", init_method=meeting, rank=rank, world_size=size)
            sum_of_ranks(size)
            large = torch.arange(1 << 18, dtype=torch.float64) + rank
            dist.all_reduce(large)
            assert torch.equal(large, size * torch.arange(1 << 18, dtype=torch.float64) + 6)
            links = stretto.describe_links()
            dist.destroy_process_group()
            return links

        for links in ranks.run(body, 4):
            self.assertRegex(links, r"shm to rank \d.*tcp to ranks? \d|tcp to .*shm to rank \d")

    def test_groups(self) -> None:
        """Several groups exist at a time: overlapping, and one within the other."""

        def body(rank: int, size: int) -> None:
            pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 0])]
            for pair in pairs:
                if pair is not dist.GroupMember.NON_GROUP_MEMBER:
                    sum_of_ranks(2, pair)
            alone, _ = dist.new_subgroups(1)
            sum_of_ranks(1, alone)
            sum_of_ranks(size)
            backend = dist.group.WORLD._get_backend(CPU)
            assert backend.name() == "stretto" and backend.size() == size

        ranks.with_group(body, 3)

    def test_groups_of_several_sizes_with_one_name(self) -> None:
        """PyTorch reuses the names of groups after the default group has been destroyed."""

        def body(rank: int, size: int, path: str) -> None:
            store = dist.FileStore(path, size)
            for members in ([0, 1], None):
                dist.init_process_group("stretto", store=store, rank=rank, world_size=size)
                group = dist.new_group(members)
                if group is not dist.GroupMember.NON_GROUP_MEMBER:
                    sum_of_ranks(group.size(), group)
                dist.destroy_process_group()

        ranks.run(body, 3)

    def test_ranks_that_are_started_again_meet_in_the_same_store(self) -> None:
        """This is what torchrun does: rank 0 is killed while it waits for rank 1, which has died
        before."""

        def body(rank: int, size: int, path: str) -> None:
            store = dist.FileStore(path, size)
            meet = functools.partial(
                dist.init_process_group,
                "stretto",
                store=store,
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=60),
            )
            if rank == 0:
                waiting = os.fork()
                if waiting == 0:
                    meet()
                    os._exit(1)
                while b"1/arrived/0" not in pathlib.Path(path).read_bytes():
                    assert os.waitpid(waiting, os.WNOHANG) == (0, 0), "it has ended"
                    time.sleep(0.01)
                os.kill(waiting, signal.SIGKILL)
                os.waitpid(waiting, 0)
                store.set("started again", "")
            store.wait(["started again"])
            meet()
            sum_of_ranks(size)
            dist.destroy_process_group()

        ranks.run(body)

    def test_refuses_what_does_not_fit(self) -> None:
        import stretto

        package = pathlib.Path(stretto.__file__).parents[1]
        without = f"import sys; sys.path.append({str(package)!r}); import stretto"
        run = subprocess.run([sys.executable, "-IS", "-c", without], capture_output=True, text=True)
        self.assertIn("of PyTorch, which is not installed: pip install torch", run.stderr)

        def body(rank: int, size: int, path: str) -> None:
            told = ranks.refusal(lambda: ranks.start(path, rank, size, pg_options=object()))
            assert "stretto.Options" in told, told
            for option in ("network_timeout", "warn_after"):
                for seconds in (float("inf"), float("nan")):
                    told = ranks.refusal(lambda: stretto.Options(**{option: seconds}))
                    assert f"option {option} " in told, told
                options = stretto.Options(**{option: -1})
                assert getattr(options, option) == -1
                told = ranks.refusal(lambda: ranks.start(path, rank, size, pg_options=options))
                assert f"option {option} " in told, told

        ranks.run(body, 1)


class WorkTest(unittest.TestCase):
    def test_handles(self) -> None:
        def body(rank: int, size: int) -> None:
            tensor = torch.ones(4) * rank
            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future().then(lambda f: f.value()[0] * 2)
            assert work.wait() and work.is_completed() and work.is_success()
            assert torch.equal(future.wait(), torch.ones(4) * 2)
            assert work.result()[0].data_ptr() == tensor.data_ptr()
            assert work.exception() is None
            assert work._get_duration() >= 0
            # A future alone makes its operation progress, even if other ranks come late.
            if rank == 0:
                time.sleep(0.2)
            works = [dist.all_reduce(torch.ones(1 << 18), async_op=True) for _ in range(4)]
            for each in works:
                assert each.get_future().wait()[0][0] == size
            # Dropping a handle does not cancel its operation.
            last = torch.ones(3)
            dist.all_reduce(last, async_op=True)
            dist.barrier()
            assert torch.equal(last, torch.ones(3) * size)
            received = torch.empty(2)
            if rank == 0:
                waiting = dist.irecv(received, src=1)
                text = ranks.failure(lambda: waiting.wait(datetime.timedelta(milliseconds=20)))
                assert "20 ms" in text and "goes on" in text, text
                dist.barrier()
                waiting.wait()
                assert torch.equal(received, torch.ones(2))
            else:
                dist.barrier()
                dist.send(torch.ones(2), dst=0)

        ranks.with_group(body)

    def test_failures(self) -> None:
        """The texts say which rank did what, and reach every function that can be asked."""

        def body(rank: int, size: int) -> str:
            tensor = torch.ones(4 + rank)
            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future()
            text = ranks.failure(work.wait)
            assert "all_reduce" in ranks.failure(future.wait)
            assert work.is_completed() and not work.is_success()
            assert isinstance(work.exception(), dist.DistBackendError)
            return str(work.exception()) if rank == 0 else text

        for text in ranks.with_group(body):
            self.assertRegex(text, r"rank 0 .*\[4\].*rank 1 .*\[5\]|rank 1 .*\[5\].*rank 0 .*\[4\]")

    def test_failures_of_a_group(self) -> None:
        """The text names ranks by their numbers in the group, and lists their numbers in the
        job."""

        def body(rank: int, size: int) -> str:
            last = dist.new_group([1, 2])
            text = ""
            if rank > 0:
                text = ranks.failure(lambda: dist.all_reduce(torch.ones(rank), group=last))
            dist.barrier()
            return text

        _, one, two = ranks.with_group(body, 3)
        for text in (one, two):
            self.assertIn("The ranks of this group are, in the job: 1, 2", text)

    def test_callbacks(self) -> None:
        """In a callback of its future, an operation has ended, and wait() returns."""

        def body(rank: int, size: int) -> None:
            for _ in range(20):
                work = dist.all_reduce(torch.ones(1 << 17), async_op=True)
                seen = work.get_future().then(lambda _: work.wait() and work.is_completed())
                assert seen.wait() is True

        ranks.with_group(body)

    def test_wrong_arguments(self) -> None:
        def body(rank: int, size: int) -> None:
            wrong = [
                (lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2)), "f8_e5m2"),
                (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "bit_and"),
                (lambda: dist.all_gather_into_tensor(torch.ones(9), torch.ones(2)), "have 4"),
                (lambda: dist.all_gather([torch.ones(1)] * 3, torch.ones(1)), "one for each rank"),
            ]
            for call, text in wrong:
                told = ranks.refusal(call)
                assert text in told, told
            sum_of_ranks(size)

        ranks.with_group(body)

    def test_two_deaths(self) -> None:
        """The survivors are told of the death, shrink the group, and continue. The second text
        names ranks by their numbers before shrink_group(), and says so."""

        def body(rank: int, size: int, path: str) -> str:
            ranks.start(path, rank, size)
            sum_of_ranks(size)
            texts = []
            for victim, excluded, left in ((1, 1, (0, 2, 3)), (2, 1, (0, 3))):
                if rank == victim:
                    os._exit(9)
                texts.append(ranks.failure(lambda: dist.all_reduce(torch.ones(2))))
                dist.shrink_group([excluded])
                tensor = torch.tensor([float(rank)])
                dist.all_reduce(tensor)
                assert dist.get_world_size() == len(left) and tensor.item() == sum(left), tensor
            dist.destroy_process_group()
            assert "rank 1" in texts[0] and "before shrink_group" not in texts[0], texts[0]
            return texts[1]

        for rank, text in enumerate(ranks.run(body, 4, deaths=2)):
            if rank in (0, 3):
                self.assertIn("rank 2", text)
                self.assertIn("what were 0, 2, 3 are ranks 0 to 2 of this group", text)

    def test_an_abort_after_a_death_names_who_did(self) -> None:
        def body(rank: int, size: int, path: str) -> str:
            ranks.start(path, rank, size)
            sum_of_ranks(size)
            if rank == 0:
                os._exit(9)
            dist.shrink_group([0])
            if rank == 2:
                dist.group.WORLD._get_backend(CPU).abort()
                return ""
            return ranks.failure(lambda: dist.all_reduce(torch.ones(2)))

        text = ranks.run(body, 3, deaths=1)[1]
        self.assertIn("rank 2 has called abort()", text)
        self.assertIn("what were 1, 2 are ranks 0 to 1", text)

    def test_time_is_up(self) -> None:
        def body(rank: int, size: int) -> str:
            import stretto

            if rank == 1:
                stretto.note("looking out of the window")
            dist.barrier()
            dist.group.WORLD._get_backend(CPU).set_timeout(datetime.timedelta(seconds=2))
            return ranks.first(lambda: ranks.failure(lambda: dist.all_reduce(torch.ones(1))))

        text = ranks.with_group(body)[0]
        self.assertIn("rank 1", text)
        self.assertIn("looking out of the window", text)

    def test_monitored_barrier(self) -> None:
        def body(rank: int, size: int, path: str) -> str:
            import stretto

            ranks.start(path, rank, size)
            stretto.monitored_barrier(timeout=datetime.timedelta(seconds=60))
            stretto.monitored_barrier()
            limit = datetime.timedelta(seconds=0.5)
            barrier = functools.partial(stretto.monitored_barrier, timeout=limit)
            return ranks.first(lambda: ranks.failure(barrier))

        text = ranks.run(body, 3)[0]
        self.assertIn("Rank 0 timed out in monitoredBarrier", text)
        self.assertIn("rank 1", text)
        self.assertIn("rank 2", text)

    def test_split_sizes_are_given_by_all_ranks_or_by_none(self) -> None:
        def body(rank: int, size: int, path: str) -> str:
            ranks.start(path, rank, size)
            sizes = [[2] * size] * 2 if rank == 0 else []
            sent = torch.zeros(2 * size)
            return ranks.failure(
                lambda: dist.all_to_all_single(torch.empty_like(sent), sent, *sizes)
            )

        for text in ranks.run(body, 2):
            self.assertIn("First difference", text)

    def test_a_group_is_made_that_another_rank_abandons_at_once(self) -> None:
        """The slower ranks get the group as well, and are told why it fails when they use it."""

        def body(rank: int, size: int, path: str) -> list[str]:
            import stretto

            ranks.start(path, rank, size)
            texts = []
            for turn in range(20):
                group = dist.new_group()
                if turn == 0 and rank == 1:
                    time.sleep(0.2)  # By then rank 0 has abandoned the first group.
                try:
                    timeout = datetime.timedelta(seconds=ranks.TIMEOUT_SECONDS if rank else 0)
                    stretto.monitored_barrier(group, timeout)
                except dist.DistBackendError as error:
                    texts.append(str(error))
            return texts

        results = ranks.run(body, 3)
        self.assertGreater(len(results[0]), 0, "rank 0 has always found the others there")
        self.assertTrue(all("timed out" in text for text in results[0]), results[0])
        for heard in results[1:]:
            self.assertTrue(all("rank 0 abandoned the group" in text for text in heard), heard)
            self.assertEqual(len(heard), len(results[0]))

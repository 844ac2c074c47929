# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of reconfigure(), which gives a group other members, and of abort hooks."""

from __future__ import annotations

import datetime
import os
import signal
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import ranks
import torch
import torch.distributed as dist
from process_group_test import free_port
from ranks import failure, refusal
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")
is_in_torch = unittest.skipUnless(
    hasattr(dist.ProcessGroup, "reconfigure"),
    "reconfigure() and abort hooks are in PyTorch from 2.14 on",
)


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def make_group(store: dist.Store, rank: int, size: int) -> None:
    """Makes a group that has no members yet."""
    dist.init_process_group(
        "stretto",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=ranks.TIMEOUT_SECONDS),
        enable_reconfigure=True,
    )


def notes(path: str, size: int) -> dist.Store:
    """Returns a store in which the processes exchange texts while they have no common group."""
    return dist.FileStore(f"{path}-notes", size)


def tell(store: dist.Store, process: int, size: int) -> list[str]:
    """Publishes this process' handle, and returns the handles of all processes."""
    store.set(str(process), dist._get_reconfigure_handle())
    return [store.get(str(each)).decode() for each in range(size)]


def reconfigure(uuid: int, handles: list[str] | set[str], **options: Any) -> None:
    assert dist._reconfigure(uuid, handles, **options).wait()


def check(rank: int, size: int) -> None:
    """Checks that this process has this rank and size, and reaches the others."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.eq(size).all(), ones
    previous = torch.empty(1)
    work = dist.irecv(previous, group_src=(rank - 1) % size) if size > 1 else None
    if work is not None:
        dist.send(torch.tensor([float(rank)]), group_dst=(rank + 1) % size)
        work.wait()
        assert previous.item() == (rank - 1) % size
    dist.barrier()


def run(body: Callable[[int, int, list[str]], Any], size: int, **options: Any) -> list[Any]:
    """Runs body(rank, size, handles) on every rank of a group that has no members yet."""

    def start(rank: int, size: int, path: str) -> Any:
        ranks.start(path, rank, size, enable_reconfigure=True)
        store = notes(path, size)
        result = body(rank, size, tell(store, rank, size))
        dist.destroy_process_group()
        return result

    return ranks.run(start, size, **options)


def gradient_of(model: nn.Module, factor: float) -> float:
    model.zero_grad()
    (factor * model(torch.ones(1, 1))).sum().backward()
    (weight,) = model.parameters()
    assert weight.grad is not None
    return weight.grad.item()


@is_in_torch
class ReconfigureTest(unittest.TestCase):
    def test_members_are_those_of_the_list(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> str:
            assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
            assert dist._supports_reconfigure()
            text = failure(lambda: dist.all_reduce(torch.ones(1)))
            reconfigure(1, handles)
            check(rank, size)
            reconfigure(2, handles[::-1])
            check(size - 1 - rank, size)
            reconfigure(-3, set(handles))
            check(sorted(handles).index(handles[rank]), size)
            assert dist._get_reconfigure_handle() == handles[rank]
            self.assertRegex(handles[rank], r"^stretto:[0-9a-f]{16}:$")
            return text

        for text in run(body, 3):
            self.assertIn("call reconfigure()", text)

    def test_a_group_that_has_members_from_the_start(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            ranks.start(path, rank, size)
            handles = tell(notes(path, size), rank, size)
            check(rank, size)
            reconfigure(1, handles[::-1])
            check(size - 1 - rank, size)
            dist.destroy_process_group()

        ranks.run(body)

    def test_the_last_one_and_one_in_the_middle_leave(self) -> None:
        for gone, others in ((2, "01"), (1, "02")):

            def body(rank: int, size: int, handles: list[str], gone: int = gone) -> str:
                reconfigure(1, handles)
                check(rank, size)
                if rank == gone:
                    return failure(lambda: dist.all_reduce(torch.ones(1)))
                left = [handles[each] for each in range(size) if each != gone]
                reconfigure(2, left)
                check(left.index(handles[rank]), size - 1)
                return ""

            with self.subTest(gone=gone):
                self.assertRegex(
                    run(body, 3)[gone],
                    rf"rank [{others}] has (destroyed its communicator|called reconfigure\(\))",
                )

    def test_down_to_one_and_up_again(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> None:
            reconfigure(1, handles)
            check(rank, size)
            reconfigure(2, [handles[rank]])
            check(0, 1)
            reconfigure(3, handles)
            check(rank, size)

        run(body, 2)

    def test_two_halves_become_one(self) -> None:
        """Each half has met in a store of its own."""
        ports = [free_port(), free_port()]

        def body(rank: int, size: int, path: str) -> None:
            half, place = divmod(rank, 2)
            make_group(dist.TCPStore("127.0.0.1", ports[half], 2, place == 0), place, 2)
            handles = tell(notes(path, size), rank, size)
            assert handles[rank].endswith(f":127.0.0.1:{ports[half]}"), handles
            reconfigure(1, handles[2 * half :][:2])
            check(place, 2)
            reconfigure(2, handles)
            check(rank, size)
            dist.destroy_process_group()

        ranks.run(body, 4)

    def test_one_comes_later(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            is_late = rank == size - 1
            place = (0, 1) if is_late else (rank, size - 1)
            ranks.start(path, *place, enable_reconfigure=True)
            store = notes(path, size)
            if not is_late:
                store.set(f"early {rank}", dist._get_reconfigure_handle())
                early = [store.get(f"early {each}").decode() for each in range(size - 1)]
                reconfigure(1, early)
                check(rank, size - 1)
            handles = tell(store, rank, size)
            reconfigure(2, handles)
            check(rank, size)
            dist.destroy_process_group()

        ranks.run(body, 3)

    def test_after_abort(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> str:
            reconfigure(1, handles)
            text = ""
            if rank == 1:
                world().abort()
            else:
                text = failure(lambda: dist.all_reduce(torch.ones(1)))
            reconfigure(2, handles)
            errors = torch._C._distributed_c10d.ErrorType
            assert world()._get_backend(CPU).get_error() == errors.SUCCESS
            check(rank, size)
            return text

        self.assertIn("rank 1 has called abort()", run(body, 2)[0])

    def test_after_a_death(self) -> None:
        """Later failures name ranks by their new numbers."""

        def body(rank: int, size: int, path: str) -> list[str]:
            ranks.start(path, rank, size, enable_reconfigure=True)
            store = notes(path, size)
            handles = tell(store, rank, size)
            told = []
            for victim in range(size - 1):
                reconfigure(victim, handles[victim:])
                check(rank - victim, size - victim)
                store.set(f"{rank} expects the death of {victim}", "")
                if rank == victim:
                    for other in range(victim, size):
                        store.get(f"{other} expects the death of {victim}")
                    os.kill(os.getpid(), signal.SIGKILL)
                told.append(failure(lambda: dist.all_reduce(torch.ones(1))))
            reconfigure(size, handles[-1:])
            check(0, 1)
            dist.destroy_process_group()
            return told

        died, died_later, told = ranks.run(body, 3, deaths=2)
        self.assertEqual((died, died_later, len(told)), (None, None, 2))
        for text in told:
            self.assertIn("rank 0", text)

    def test_rank_0_dies_and_its_store_is_elsewhere(self) -> None:
        """The last process hosts the store, and is not a member."""
        port = free_port()

        def body(process: int, processes: int, path: str) -> None:
            size = processes - 1
            store = notes(path, processes)
            if process == size:
                hosted = dist.TCPStore("127.0.0.1", port, is_master=True)
                store.wait([f"{rank} is done" for rank in range(1, size)])
                assert hosted.port == port
                return
            make_group(dist.TCPStore("127.0.0.1", port), process, size)
            handles = tell(store, process, size)
            assert handles[process].endswith(f":127.0.0.1:{port}"), handles
            reconfigure(1, handles)
            check(process, size)
            store.set(f"{process} expects it", "")
            if process == 0:
                store.wait([f"{rank} expects it" for rank in range(1, size)])
                os.kill(os.getpid(), signal.SIGKILL)
            failure(lambda: dist.all_reduce(torch.ones(1)))
            reconfigure(2, handles[1:])
            check(process - 1, size - 1)
            dist.destroy_process_group()
            store.set(f"{process} is done", "")

        ranks.run(body, 4, deaths=1)

    def test_what_is_in_flight_fails_and_others_hear_why(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> str:
            reconfigure(1, handles)
            check(rank, size)
            if rank == 0:
                work = dist.irecv(torch.empty(1), group_src=1)
                reconfigure(2, handles[:1])
            text = refusal(work.wait if rank == 0 else lambda: dist.recv(torch.empty(1), 0))
            reconfigure(3, handles)
            check(rank, size)
            return text

        for text in run(body, 2):
            self.assertIn("rank 0 has called reconfigure()", text)

    def test_calls_on_other_threads_fail(self) -> None:
        """These include calls that are not operations of the group."""

        def body(rank: int, size: int, handles: list[str]) -> None:
            import stretto

            def leave() -> None:
                with ThreadPoolExecutor() as pool:
                    model = nn.Linear(1, 1)
                    told = pool.submit(failure, lambda: stretto.verify_replicas(model))
                    time.sleep(0.5)  # By then the call waits for the other rank.
                    reconfigure(2, handles[:1])
                    assert "called reconfigure()" in told.result()

            reconfigure(1, handles)
            ranks.first(leave)

        run(body, 2)

    def test_records_keep_the_name_of_their_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:

            def body(rank: int, size: int, handles: list[str]) -> None:
                os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
                reconfigure(1, handles)
                if rank == 0:
                    return
                reconfigure(2, handles[1:])
                check(rank - 1, size - 1)
                if rank == 2:
                    world().abort()
                failure(lambda: dist.all_reduce(torch.ones(1)))

            run(body, 3)
            self.assertEqual(sorted(os.listdir(folder)), ["rank_1", "rank_2"])

    def test_mistakes_are_refused_and_change_nothing(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> None:
            (own,) = handles
            reconfigure(7, handles)
            other = f"stretto:{'0' * 16}:"
            for uuid, given, said in [
                (7, handles, "7 was already used"),
                (8, [other], "the handle of this rank, stretto:.*is missing"),
                (8, set(), "is missing"),
                (8, [own, own], "listed twice"),
                (8, [own, other, other], "listed twice"),
                *((8, [own, bad], "is no handle of a member") for bad in malformed(own)),
            ]:
                text = refusal(lambda uuid=uuid, given=given: dist._reconfigure(uuid, given))
                self.assertRegex(text, said)
            past = datetime.timedelta(seconds=-2)
            text = refusal(lambda: dist._reconfigure(8, handles, timeout=past))
            self.assertIn("a timeout of -2 s is negative", text)
            check(0, 1)
            reconfigure(8, handles)
            check(0, 1)

        def malformed(own: str) -> list[str]:
            digits = "0" * 16
            return [
                "",
                "gloo:rank0",
                own[:-1],
                own.upper(),
                f"{own}\n",
                f"stretto:{digits[1:]}:",
                f"stretto:{digits[1:]}g:",
                f"stretto:{digits}:host",
                f"stretto:{digits}:host:65536",
                f"stretto:{digits}:ho\x00st:1",
                f"stretto:{digits}:{'a' * 500}:1",
            ]

        run(body, 1)

    def test_other_lists_do_not_meet(self) -> None:
        """The group then has no members, and gets members by another call."""

        def body(rank: int, size: int, handles: list[str]) -> tuple[str, str]:
            reconfigure(1, handles)
            given = handles if rank == 0 else handles[::-1]
            soon = datetime.timedelta(seconds=1)
            late = failure(lambda: dist._reconfigure(2, given, timeout=soon))
            lacking = failure(lambda: dist.all_reduce(torch.ones(1)))
            reconfigure(3, handles)
            check(rank, size)
            return late, lacking

        for late, lacking in run(body, 2):
            self.assertIn("uuid 2", late)
            self.assertIn("the same handles, in the same order", late)
            self.assertIn("call reconfigure()", lacking)

    def test_a_server_that_is_not_there(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> str:
            far = f"stretto:{'0' * 16}:127.0.0.1:{port}"
            soon = datetime.timedelta(seconds=1)
            return failure(lambda: dist._reconfigure(1, [*handles, far], timeout=soon))

        port = free_port()
        self.assertIn(f"TCPStore at 127.0.0.1:{port}", run(body, 1)[0])

    def test_models_go_on_with_fewer_ranks(self) -> None:
        """Gradients are averaged over the remaining ranks."""

        def body(rank: int, size: int, handles: list[str]) -> list[float]:
            reconfigure(1, handles)
            model = DistributedDataParallel(
                nn.Linear(1, 1, bias=False), gradient_as_bucket_view=True
            )
            gradients = [gradient_of(model, rank + 1) for _ in range(3)]
            if rank == 2:
                return gradients
            reconfigure(2, handles[:2])
            return gradients + [gradient_of(model, rank + 1) for _ in range(3)]

        results = run(body, 3)
        for gradients, wanted in zip(results, [[2.0] * 3 + [1.5] * 3] * 2 + [[2.0] * 3]):
            self.assertEqual([round(each, 5) for each in gradients], wanted)

    def test_a_compression_hook_belongs_to_its_members(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> str:
            import stretto

            reconfigure(1, handles)
            model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
            stretto.hooks.f16().register(model)
            assert gradient_of(model, rank + 1) == 1.5
            reconfigure(2, handles)
            text = refusal(lambda: gradient_of(model, 1))
            model = DistributedDataParallel(model.module)
            stretto.hooks.f16().register(model)
            assert gradient_of(model, rank + 1) == 1.5
            return text

        for text in run(body, 2):
            self.assertIn("wrap the model again", text)

    def test_other_functions_take_the_members_of_now(self) -> None:
        def body(rank: int, size: int, handles: list[str]) -> None:
            import stretto

            reconfigure(1, handles)
            reconfigure(2, handles[::-1])
            new = size - 1 - rank
            assert f"shm to rank {1 - new}" in stretto.describe_links()
            mapped = stretto.empty(4).fill_(new)
            dist.all_reduce(mapped)
            assert mapped.eq(1).all()
            part = world().split_group([1, 0], group_name="part")
            assert part is not None and part.size() == size
            one = torch.ones(1)
            part.allreduce([one]).wait()
            assert one.item() == size

        run(body, 2)


@is_in_torch
class AbortHookTest(unittest.TestCase):
    def test_each_is_called_once(self) -> None:
        """By a timeout, by another rank's failure, and by abort(); not by the group's end."""

        def body(rank: int, size: int, path: str) -> list[str]:
            ranks.start(path, rank, size)
            store = notes(path, size)
            handles = tell(store, rank, size)
            called: list[str] = []

            def expect(wanted: list[str]) -> None:
                """Waits for hooks: another thread may have seen the failure first and call them."""
                deadline = time.monotonic() + ranks.TIMEOUT_SECONDS / 2
                while len(called) < len(wanted) and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert called == wanted, called

            def fail() -> None:
                called.append("fail")
                raise KeyError("a mistake of the hook's")

            world().register_abort_hook(1, fail)
            world().register_abort_hook(2, lambda: called.append("count"))
            world().register_abort_hook(3, lambda: called.append("removed"))
            world().unregister_abort_hook(3)
            world().unregister_abort_hook(4)
            check(rank, size)
            backend = world()._get_backend(CPU)
            if rank == 0:
                backend.set_timeout(datetime.timedelta(seconds=0.5))
                text = failure(lambda: dist.all_reduce(torch.ones(1)))
                assert "timeout" in text, text
                store.set("late", "")
            else:
                store.get("late")  # Rank 0 has called the first operation.
                failure(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(2)])
            expect(["fail", "count"])
            failure(lambda: dist.all_reduce(torch.ones(1)))
            world().abort()
            backend.set_timeout(datetime.timedelta(seconds=ranks.TIMEOUT_SECONDS))
            reconfigure(1, handles)
            check(rank, size)
            expect(["fail", "count"])
            if rank == 0:
                world().abort()
            else:
                failure(lambda: dist.all_reduce(torch.ones(1)))
            expect(["fail", "count"] * 2)
            reconfigure(2, handles)
            check(rank, size)
            _ = dist.irecv(torch.empty(1), group_src=1) if rank == 0 else store.get("ended")
            dist.destroy_process_group()
            store.set("ended", "")
            return called

        for called in ranks.run(body):
            self.assertEqual(called, ["fail", "count"] * 2)

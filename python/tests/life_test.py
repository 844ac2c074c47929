# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that groups that end, fail or are misused do not hang, and leave nothing behind."""

from __future__ import annotations

import atexit
import ctypes
import datetime
import functools
import os
import pathlib
import threading
import time
import unittest
from unittest import mock

import ranks
import torch
import torch.distributed as dist
from process_group_test import sum_of_ranks
from ranks import refusal


class Mallinfo2(ctypes.Structure):
    """The result of glibc's mallinfo2(), with the names of its manual page."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks "
        "keepcost".split()
    ]


def held_by_this_process() -> dict[str, int]:
    """Returns the resources of this process. Memory is counted as allocated by malloc, because the
    resident size also grows by chance."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    heap = mallinfo2()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
        "bytes": heap.uordblks + heap.hblkhd,
    }


def use_everything() -> None:
    """Uses every feature that has memory, threads or descriptors of its own."""
    import stretto

    mapped = stretto.empty(1 << 16).fill_(1)
    dist.all_reduce(mapped)
    dist.all_reduce(torch.ones(1 << 18), async_op=True).get_future().then(lambda f: f).wait()
    pair = dist.new_group()
    dist.all_reduce(torch.ones(3), group=pair, async_op=True)
    dist.barrier()


class GroupsTest(unittest.TestCase):
    def test_a_hundred_leave_nothing(self) -> None:
        def body(rank: int, size: int, path: str) -> tuple[dict[str, int], dict[str, int]]:
            store = dist.FileStore(path, size)
            for turn in range(100):
                dist.init_process_group("stretto", store=store, rank=rank, world_size=size)
                use_everything()
                dist.destroy_process_group()
                if turn == 19:
                    early = held_by_this_process()
            return early, held_by_this_process()

        for early, late in ranks.run(body):
            self.assertEqual(late["descriptors"], early["descriptors"])
            self.assertEqual(late["threads"], early["threads"])
            self.assertLess(late["mappings"], early["mappings"] + 40)
            # 80 groups leave their keys in the store: 7 KiB each.
            self.assertLess(late["bytes"], early["bytes"] + (2 << 20), (early, late))

    def test_forked_children_leave_it_alone(self) -> None:
        """A child cannot use the group of its parent, and can end like any process."""

        def body(rank: int, size: int) -> list[str]:
            use_everything()  # A child does not have the futures' driver thread.
            if rank == 0:  # The child also lacks the thread that may hold a lock.
                dist.all_reduce(torch.ones(1), async_op=True).get_future()
                time.sleep(0.1)
            kept = [dist.irecv(torch.empty(3, 4).t(), 1 - rank)]  # The result is copied afterwards.
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                kept.clear()
                try:
                    dist.all_reduce(torch.ones(1))
                except ValueError as error:
                    os.write(writing, str(error).encode())
                atexit._run_exitfuncs()
                dist.destroy_process_group()
                os._exit(0)
            os.close(writing)
            told = os.read(reading, 1 << 12).decode()
            deadline = time.monotonic() + 20
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    raise AssertionError("the child hangs")
                time.sleep(0.01)
            if rank == 1:
                dist.all_reduce(torch.ones(1))
            dist.send(torch.ones(4, 3), 1 - rank)
            assert kept[0].wait()
            sum_of_ranks(size)
            return told

        for told in ranks.with_group(body):
            self.assertIn("forked", told)

    def test_the_end_of_a_group_ends_what_waits(self) -> None:
        """This ends a thread in wait(), and threads that wait for a future."""

        def body(rank: int, size: int) -> list[str]:
            groups = [dist.new_group() for _ in range(3)]
            works = [dist.irecv(torch.empty(1), 1 - rank, group) for group in groups]
            waits = [works[0].wait, works[1].get_future().wait, works[2].get_future().wait]
            told: list[str] = []
            threads = [threading.Thread(target=lambda w=w: told.append(refusal(w))) for w in waits]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            groups.pop().abort()
            for group in groups:
                dist.destroy_process_group(group)
            del works, waits, group, groups
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive(), "a thread waits for a group that is no more"
            return told

        for told in ranks.with_group(body):
            self.assertEqual(len(told), 3)
            for text in told:
                self.assertRegex(text, "destroyed|has called abort")

    def test_collectives_in_flight_end_before_their_group(self) -> None:
        """This holds as with Gloo, whether their handles are kept or not, even if another rank is
        late."""

        def body(rank: int, size: int, path: str) -> None:
            for count in (4, 1 << 18):
                ranks.start(f"{path}-{count}", rank, size)
                if rank == 1:
                    time.sleep(0.5)
                kept, dropped = torch.ones(count), torch.ones(count)
                work = dist.all_reduce(kept, async_op=True)
                dist.all_reduce(dropped, async_op=True)
                dist.destroy_process_group()
                assert work.is_success() and kept.eq(size).all() and dropped.eq(size).all()

        ranks.run(body)

    def test_many_dropped_handles_do_not_keep_their_group(self) -> None:
        """Several threads make progress on the operations, and all of these end with the group."""

        def body(rank: int, size: int, path: str) -> None:
            for turn in range(30):
                ranks.start(f"{path}-{turn}", rank, size)
                works = [dist.irecv(torch.empty(1), 1 - rank) for _ in range(8)]
                del works
                for _ in range(8):
                    dist.send(torch.ones(1), 1 - rank)
                dist.barrier()  # Ending the group ends messages still being sent.
                dist.destroy_process_group()

        ranks.run(body)

    def test_others_hear_of_the_exception_that_ended_a_rank(self) -> None:
        program = """
meet()
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("no image \\udcff")  # As os.listdir() names a file that is no UTF-8.
dist.all_reduce(torch.ones(1))
"""
        ended = ranks.two_programs(program)
        self.assertIn("rank 1 has ended by ValueError: no image", ended[0][1])
        for _, told, status in ended:
            self.assertNotIn("atexit", told)  # An exception in atexit is only printed.
            self.assertEqual(status, 1, told)

    def test_functions_of_atexit_use_groups_that_are_made_later(self) -> None:
        program = """
@atexit.register
def last():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(ones.item())
    dist.destroy_process_group()

meet()
"""
        for said, told, status in ranks.two_programs(program):
            self.assertEqual((said, status), ("2.0\n", 0), told)

    def test_an_exception_without_a_text_ends_the_groups_too(self) -> None:
        import stretto

        class Silent(Exception):
            def __str__(self) -> str:
                raise ZeroDivisionError

        with mock.patch.object(stretto, "_loaded") as module:
            stretto._end_groups(Silent())
        module.shut_down_all.assert_called_once_with("has ended by Silent")

    def test_below_the_debug_wrapper(self) -> None:
        """Functions that only stretto has also work below PyTorch's wrapper of
        TORCH_DISTRIBUTED_DEBUG=DETAIL."""

        def body(rank: int, size: int, path: str) -> None:
            import stretto

            dist.set_debug_level(dist.DebugLevel.DETAIL)
            ranks.start(path, rank, size)
            stretto.note("looking")
            stretto.monitored_barrier()
            assert "rank" in stretto.describe_links()
            tensor = stretto.empty(4).fill_(rank)
            assert stretto.explain("all_reduce", tensor)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.ones(4))
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
            stretto.hooks.f16().register(model)
            model(torch.ones(1, 4)).sum().backward()
            dist.destroy_process_group()

        ranks.run(body)

    def test_beside_another_backend(self) -> None:
        """PyTorch passes the options of one backend of a group to all of its backends."""

        def body(rank: int, size: int, path: str) -> None:
            import stretto

            theirs = dist.ProcessGroupGloo._Options()
            ranks.start(path, rank, size, "cuda:gloo,cpu:stretto", pg_options=theirs)
            sum_of_ranks(size)
            alone = dist.new_group([0])
            if rank == 1:
                assert "not a member" in refusal(lambda: stretto.note("", alone))
            dist.destroy_process_group()
            for call in (stretto.describe_links, lambda: stretto.empty(1)):
                assert "init_process_group" in refusal(call)

        ranks.run(body)

    def test_replicas_that_differ(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            import stretto

            ranks.start(path, rank, size)
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
            stretto.verify_replicas(model)
            if rank == 1:
                with torch.no_grad():
                    model[1].weight[1, 0] += 1e-6
            told = refusal(lambda: stretto.verify_replicas(model))
            assert "parameter '1.weight'" in told and "rank 1" in told, told
            if rank == 1:
                model.append(torch.nn.Linear(2, 2))
            told = refusal(lambda: stretto.verify_replicas(model))
            assert "4 parameters on rank 0; 6 parameters on rank 1" in told, told
            sum_of_ranks(size)
            dist.destroy_process_group()

        ranks.run(body)

    def test_only_for_devices(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            import stretto

            ranks.start(path, rank, size, "cpu:gloo,cuda:stretto")
            stretto.note("looking")
            assert f"to rank {1 - rank}" in stretto.describe_links()
            theirs = dist.new_group(backend="gloo")
            assert "is gloo, not stretto" in refusal(lambda: stretto.note("", theirs))
            dist.destroy_process_group()

        ranks.run(body)

    def test_timeouts_of_ages(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            ranks.start(path, rank, size, timeout=datetime.timedelta(days=200_000))
            sum_of_ranks(size)
            work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
            assert work.wait(datetime.timedelta(days=200_000))
            dist.destroy_process_group()

        ranks.run(body)

    def test_a_wheel_for_another_torch(self) -> None:
        """Loading it fails with a clear text, and does not prevent another group from being
        made."""

        def body(rank: int, size: int, path: str) -> str:
            import stretto

            with mock.patch.multiple(stretto, _BUILT_FOR_TORCH="1.13", _loaded=None):
                told = refusal(lambda: ranks.start(path, rank, size))
            ranks.start(path, rank, size)
            sum_of_ranks(size)
            dist.destroy_process_group()
            return told

        for told in ranks.run(body):
            self.assertIn(f"built for torch 1.13, and here is torch {torch.__version__}:", told)

    def test_without_autoload(self) -> None:
        program = (
            "import torch.distributed as dist, stretto.autoload\n"
            "assert 'stretto' not in dist.Backend.backend_list\n"
            "stretto.autoload.register()\n"
            "dist.init_process_group('stretto', store=dist.HashStore(), rank=0, world_size=1)"
        )
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        ranks.output_of("-c", program, env=environment)


DTYPES = [torch.float32, torch.complex64, torch.bool, torch.float8_e5m2, torch.int16]
SHAPES = [(), (0,), (2, 0), (4,), (4, 3)]


def brought(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a rank's input: small numbers, not contiguous where possible."""
    numbers = (torch.arange(torch.Size(shape).numel()) + rank) % 3
    tensor = numbers.reshape(shape[::-1]).to(dtype)
    return tensor.permute(tuple(reversed(range(tensor.dim()))))


def equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    found = torch.ops._c10d_functional.wait_tensor(found).contiguous()
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    found, wanted = (torch.view_as_real(t) if t.is_complex() else t for t in (found, wanted))
    assert torch.equal(found.float(), wanted.float()), (found, wanted)


class TensorsTest(unittest.TestCase):
    def test_functional_collectives(self) -> None:
        from torch.distributed import _functional_collectives as functional

        def moved(rank: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
            world, everyone = dist.group.WORLD, [brought(r, dtype, shape) for r in range(size)]
            own = everyone[rank]
            equal(functional.broadcast(own, 1, world), everyone[1])
            if shape:
                equal(functional.all_gather_tensor(own, 0, world), torch.cat(everyone))
                shares = [each.chunk(size)[rank] for each in everyone if len(each)]
                exchanged = functional.all_to_all_single(own, None, None, world)
                equal(exchanged, torch.cat(shares) if shares else own)
            if len(shape) == 1:
                equal(functional.permute_tensor(own, [1, 0], world), everyone[1 - rank])

        def reduced(rank: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
            world, everyone = dist.group.WORLD, [brought(r, dtype, shape) for r in range(size)]
            own, total = everyone[rank], functools.reduce(torch.add, everyone)
            equal(functional.all_reduce(own, "sum", world), total)
            for each in functional.all_reduce_coalesced([own, own], "sum", world):
                equal(each, total)
            if shape and shape[0] > 0:
                share = functional.reduce_scatter_tensor(own, "sum", 0, world)
                equal(share, total.chunk(size)[rank])

        def body(rank: int, size: int) -> None:
            for dtype in DTYPES:
                for shape in SHAPES:
                    moved(rank, size, dtype, shape)
                    if dtype != torch.float8_e5m2:
                        reduced(rank, size, dtype, shape)
            own = torch.full((2,), float(rank))
            for most in functional.all_reduce_coalesced([own, own], "max", dist.group.WORLD):
                equal(most, torch.full((2,), size - 1.0))
            told = refusal(lambda: equal(functional.all_reduce(
                torch.ones(2, dtype=torch.float8_e5m2), "sum", dist.group.WORLD), torch.ones(2)))
            assert "f8_e5m2" in told, told

        ranks.with_group(body)

    def test_outputs_in_the_place_of_inputs(self) -> None:
        def body(rank: int, size: int) -> None:
            whole = torch.full((size, 3), -1.0)
            whole[rank] = rank
            wanted = torch.arange(float(size)).repeat_interleave(3).reshape(size, 3)
            dist.all_gather_into_tensor(whole, whole[rank])
            assert torch.equal(whole, wanted), whole
            parts = [torch.full((3,), float(rank)) for _ in range(size)]
            dist.all_gather(parts, parts[rank])
            assert torch.equal(torch.stack(parts), wanted), parts
            dist.reduce_scatter_tensor(whole[rank], whole)
            assert torch.equal(whole[rank], wanted[rank] * size), whole
            mine = torch.arange(float(size)) + 10 * rank
            dist.all_to_all_single(mine, mine)
            assert torch.equal(mine, torch.arange(float(size)) * 10 + rank), mine
            told = refusal(lambda: dist.all_gather_into_tensor(whole.view(-1)[:4], whole[0, 1:]))
            assert "overlap" in told, told
            sum_of_ranks(size)

        ranks.with_group(body)

    def test_a_message_from_anybody_to_a_tensor_with_gaps(self) -> None:
        def body(rank: int, size: int) -> None:
            if rank == 0:
                received = torch.zeros(3, 4).t()
                for tag in (1, 2):  # The first message has already come, the second comes later.
                    assert dist.recv(received, tag=tag) == 1
                    assert torch.equal(received, torch.arange(12.0).reshape(4, 3) * tag)
            else:
                for tag in (1, 2):
                    dist.send(torch.arange(12.0).reshape(4, 3) * tag, 0, tag=tag)

        ranks.with_group(body)

    def test_sizes_of_registered_tensors(self) -> None:
        def body(rank: int, size: int) -> list[tuple[int, ...]]:
            import stretto

            sizes = [(), (0,), (2, 3), ((2, 3),), ([4],), (torch.Size([5]),)]
            tensors = [stretto.empty(*each) for each in sizes]
            dist.all_reduce_coalesced(tensors)
            with stretto.memory():
                tensors.append(torch.tensor(1.5))
            assert tensors[-1].item() == 1.5
            return [tuple(each.shape) for each in tensors]

        shapes = [(), (0,), (2, 3), (2, 3), (4,), (5,), ()]
        self.assertEqual(ranks.with_group(body), [shapes] * 2)

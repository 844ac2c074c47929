# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests the handles of operations, single and in batches: callbacks, futures, failures."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
import unittest
import weakref

import ranks
import stretto
import torch
import torch.distributed as dist
from process_group_test import CPU, sum_of_ranks
from ranks import refusal


class HandlesTest(unittest.TestCase):
    def test_callbacks_that_throw(self) -> None:
        """The thread that calls them continues, and so does the group."""

        def throw(_: object) -> None:
            raise ZeroDivisionError("of the program")

        def body(rank: int, size: int) -> None:
            group = dist.new_group()
            group._register_on_completion_hook(throw)
            for count in (1, 1 << 18):
                dist.all_reduce(torch.ones(count), group=group)
                work = dist.all_reduce(torch.ones(count), async_op=True)
                chained = work.get_future().then(throw)
                work.get_future().add_done_callback(throw)
                assert "of the program" in refusal(chained.wait)
                assert work.wait()
            sum_of_ranks(size)
            sum_of_ranks(size, group)

        ranks.with_group(body)

    def test_who_waits_finds_callbacks_have_returned(self) -> None:
        """The callbacks may change the results, as with Gloo."""

        def look(work: dist.Work) -> None:
            while not work.is_completed():
                time.sleep(0.001)

        def body(rank: int, size: int) -> None:
            for wait in (dist.Work.wait, look):
                reduced = torch.ones(1 << 16)
                if rank == 1:
                    time.sleep(0.1)  # So that rank 0 gets its future before the end.
                work = dist.all_reduce(reduced, async_op=True)
                work.get_future().then(lambda f: (time.sleep(0.3), f.value()[0].div_(size)))
                wait(work)
                assert reduced[0] == 1, reduced
            received, seen = torch.zeros(1), []
            begun, looked = threading.Event(), threading.Event()
            if rank == 1:
                time.sleep(0.1)
                return dist.send(torch.ones(1), 0)
            work = dist.irecv(received, 1)

            def double(_: object) -> None:
                begun.set()
                looked.wait()
                seen.extend(received.mul_(2).tolist())

            work.get_future().then(double)
            begun.wait()
            told = ranks.failure(lambda: work.wait(datetime.timedelta(milliseconds=20)))
            assert "'s callbacks have not ended within the 20 ms" in told, told
            assert not work.is_completed() and len(work.result()) == 1
            looked.set()
            assert work.wait() and seen == [2]

        ranks.with_group(body)

    def test_asking_for_a_future_does_not_block(self) -> None:
        """It does not block even while other threads wait for the same operation."""

        def body(rank: int, size: int) -> None:
            received = torch.empty(1)
            if rank == 0:
                work = dist.irecv(received, 1)
                waiting = threading.Thread(target=work.wait)
                waiting.start()
                time.sleep(0.1)
                future, result = work.get_future(), work.get_future_result()
                seen = future.then(lambda _: work.get_future_result().wait())
                dist.send(torch.ones(1), 1)  # Rank 1 waits for this before it sends.
                assert future.wait()[0] is not None and result.wait() == seen.wait() == 0
                waiting.join()
                assert received.item() == 7
            else:
                dist.recv(received, 0)
                dist.send(torch.tensor([7.0]), 0)

        ranks.with_group(body, timeout=datetime.timedelta(seconds=20))

    def test_a_callback_may_wait_for_another_operation(self) -> None:
        """That operation's callback may wait for a third one, as in PyTorch's powerSGD_hook. This
        works with and without a progress thread, and does not have to wait for the next
        heartbeat."""
        for progress_thread in ("never", "always"):

            def body(rank: int, size: int, path: str) -> None:
                os.environ["STRETTO_PROGRESS_THREAD"] = progress_thread
                ranks.start(path, rank, size)
                works = []

                def reduce_again(depth: int) -> None:
                    works.append(dist.all_reduce(torch.ones(1 << 18), async_op=True))
                    future = works[-1].get_future()
                    if depth > 0:
                        future = future.then(lambda _: reduce_again(depth - 1))
                    future.wait()

                begun = time.monotonic()
                for _ in range(10):
                    reduce_again(4)
                assert time.monotonic() - begun < 8
                dist.destroy_process_group()

            with self.subTest(progress_thread=progress_thread):
                ranks.run(body)

    def test_who_waits_in_one_group_holds_up_no_other(self) -> None:
        """The other rank starts its part only after it has received what it needs in the other
        group."""

        def body(rank: int, size: int, path: str) -> None:
            os.environ["STRETTO_PROGRESS_THREAD"] = "never"
            ranks.start(path, rank, size)
            other = dist.new_group()
            tensor = torch.ones(4 << 20)
            begun = time.monotonic()
            for _ in range(3):
                work = dist.all_reduce(tensor, group=other, async_op=True)
                if rank == 0:
                    dist.barrier()
                work.wait()
                if rank == 1:
                    time.sleep(0.02)
                    dist.barrier()
                if rank == 0:
                    sent = dist.isend(tensor, 1, other)
                    dist.barrier()
                    sent.wait()
                else:
                    time.sleep(0.02)
                    dist.recv(tensor, 0, other)
                    dist.barrier()
            assert time.monotonic() - begun < 6
            assert tensor[-1] == 8
            dist.destroy_process_group()

        ranks.run(body)

    def test_who_waits_for_a_future_holds_up_no_other_group(self) -> None:
        """The same holds for a thread that polls an operation, or makes a group."""

        def body(rank: int, size: int, path: str) -> None:
            os.environ["STRETTO_PROGRESS_THREAD"] = "never"
            ranks.start(path, rank, size)
            other = dist.new_group()
            tensor = torch.ones(4 << 20)

            def wait_for_future() -> None:
                future.wait()

            def ask() -> None:
                while not work.is_completed():
                    time.sleep(0.001)

            def make_group() -> None:
                dist.new_group()

            begun = time.monotonic()
            for wait in (wait_for_future, ask, make_group):
                makes_group = wait == make_group
                if rank == 1:
                    dist.all_reduce(tensor, group=other)
                    dist.new_group() if makes_group else dist.all_reduce(torch.ones(1))
                    continue
                work = None if makes_group else dist.all_reduce(torch.ones(1), async_op=True)
                if wait == wait_for_future:
                    future = work.get_future()
                large = dist.all_reduce(tensor, group=other, async_op=True)
                wait()
                large.wait()
            assert time.monotonic() - begun < 6
            dist.destroy_process_group()

        ranks.run(body)

    def test_a_time_that_has_passed(self) -> None:
        def body(rank: int, size: int) -> None:
            if rank == 1:
                dist.barrier()
                dist.send(torch.ones(1), 0)
                return
            work = dist.irecv(torch.empty(1), 1)
            passed = datetime.timedelta(milliseconds=-5)
            assert "within the -5 ms" in ranks.failure(lambda: work.wait(passed))
            dist.barrier()
            work.wait()

        ranks.with_group(body)

    def test_a_barrier_ends_behind_what_was_begun_before(self) -> None:
        """Programs drop the handles, and expect this as with Gloo and NCCL."""

        def body(rank: int, size: int, path: str) -> None:
            options = stretto.Options(disable_shared_memory=True)
            ranks.start(path, rank, size, pg_options=options)
            for _ in range(3):
                tensor = torch.ones(2048, 2048)
                for each in (tensor, tensor.t()):  # The second is copied, and copied back.
                    dist.all_reduce(each, async_op=True)
                    dist.barrier()
                assert tensor[-1, -1] == tensor.min() == size * size, tensor
            dist.destroy_process_group()

        ranks.run(body)

    def test_a_callback_may_wait_for_an_earlier_operation(self) -> None:
        """Another thread waits for the earlier operation, and that thread runs the callback."""

        def body(rank: int, size: int) -> None:
            large, small = torch.ones(1 << 20), torch.zeros(1)
            begun = time.monotonic()
            for _ in range(20):
                if rank == 0:
                    received = dist.irecv(small, 1).get_future()
                    sent = dist.isend(large, 1).get_future()
                    sent.then(lambda _: received.wait()).wait()
                else:
                    dist.recv(large, 0)
                    time.sleep(0.02)
                    dist.send(small, 0)
            assert time.monotonic() - begun < 5

        ranks.with_group(body)

    def test_a_callback_may_wait_for_what_its_own_thread_waits_for(self) -> None:
        """A thread that waits for an operation meanwhile calls the callbacks of other
        operations."""

        def send_both(group: dist.ProcessGroup) -> None:
            dist.recv(torch.empty(1), 0)
            for tag in (1, 2):
                time.sleep(0.05)  # So that rank 0 waits in both places.
                dist.send(torch.ones(1), 0, group, tag)

        def receive_both(group: dist.ProcessGroup) -> list[dist.Work]:
            return [dist.irecv(torch.empty(1), 1, group, tag) for tag in (1, 2)]

        def poll(work: dist.Work) -> None:
            while not work.is_completed():
                time.sleep(0.001)

        minute = datetime.timedelta(seconds=60)
        waits = (
            lambda work: work.wait(),
            lambda work: work.wait(minute),
            lambda _: dist.group.WORLD._wait_for_pending_works(),
            poll,
        )

        def on_the_drivers_thread(rank: int, size: int) -> None:
            for wait in waits:
                if rank == 1:
                    send_both(dist.group.WORLD)
                    continue
                early, late = receive_both(dist.group.WORLD)
                late.get_future()
                waited = early.get_future().then(lambda _, wait=wait, late=late: wait(late))
                dist.send(torch.ones(1), 1)
                begun = time.monotonic()
                waited.wait()
                assert time.monotonic() - begun < 20

        def on_the_callers_thread(rank: int, size: int) -> None:
            group = dist.new_group()
            if rank == 1:
                return send_both(group)
            seen: list[bool] = []
            group._register_on_completion_hook(lambda _: seen.append(late.wait()))
            early, late = receive_both(group)
            dist.send(torch.ones(1), 1)
            assert late.wait() and early.wait()
            group._wait_for_pending_works()
            assert seen == [True, True]

        ranks.with_group(on_the_drivers_thread)
        ranks.with_group(on_the_callers_thread)

    def test_a_callback_may_wait_for_an_operation_that_ends_with_its_own(self) -> None:
        """Both operations have ended when the first callback begins, so the waiting callback must
        still be told of the other end."""

        def body(rank: int, size: int) -> None:
            # The second is received into a copy.
            for received in 20 * [torch.empty(3, 4), torch.empty(4, 3).t()]:
                if rank == 1:
                    dist.recv(torch.empty(1), 0)
                    sent = [dist.isend(torch.ones(3, 4), 0, tag=tag) for tag in (1, 2)]
                    for work in sent:
                        work.wait()
                    continue
                late = dist.irecv(received, 1, tag=2).get_future()
                early = dist.irecv(torch.empty(3, 4), 1, tag=1).get_future()
                waited = early.then(lambda _, late=late: late.wait())
                dist.send(torch.ones(1), 1)
                waited.wait()
                assert torch.equal(received, torch.ones(3, 4))
                received.zero_()

        ranks.with_group(body)

    def test_a_source_is_known_while_callbacks_run(self) -> None:
        def body(rank: int, size: int) -> None:
            if rank == 1:
                time.sleep(0.2)  # So that the receive is in flight.
                dist.send(torch.ones(1), 0)
                return
            work = dist.group.WORLD.recv_anysource([torch.empty(1)], 0)
            future = work.get_future()
            future.then(lambda _: time.sleep(0.5))
            future.wait()
            assert work._source_rank() == 1 and work.wait()

        ranks.with_group(body)

    def test_a_death_reaches_every_handle(self) -> None:
        def body(rank: int, size: int, path: str) -> list[str]:
            ranks.start(path, rank, size)
            sum_of_ranks(size)
            if rank == 1:
                time.sleep(0.2)
                os._exit(9)
            work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
            future = work.get_future()
            chained = future.then(lambda f: f.value()[0] + 1)
            outcome = work.get_future_result()
            told = [refusal(future.wait), refusal(chained.wait), refusal(work.wait)]
            assert outcome.wait() == 2, "c10d::WorkResult::COMM_ERROR"
            assert work.is_completed() and not work.is_success()
            told.append(refusal(lambda: dist.all_reduce(torch.ones(1))))
            begun = time.monotonic()
            dist.destroy_process_group()
            assert time.monotonic() - begun < 20
            return told

        for rank, told in enumerate(ranks.run(body, 3, deaths=1)):
            if rank != 1:
                for text in told:
                    self.assertIn("rank 1", text)

    def test_several_operations_are_called_as_the_last_of_them(self) -> None:
        """all_gather_coalesced, for example, submits one operation per tensor."""

        def body(rank: int, size: int) -> None:
            numbers: list[int] = []
            group = dist.new_group()
            group._register_on_completion_hook(lambda work: numbers.append(work.seq))
            dist.barrier()
            if rank == 1:
                time.sleep(0.2)
            inputs = [torch.ones(2), torch.ones(1 << 16)]
            outputs = [[torch.empty_like(each) for each in inputs] for _ in range(size)]
            work = group._get_backend(CPU).allgather_coalesced(outputs, inputs)
            if rank == 0:
                told = refusal(lambda: work.wait(datetime.timedelta(milliseconds=20)))
                assert "rank 0: all_gather#" in told and "#0" not in told, told
            work.wait()
            group._wait_for_pending_works()
            assert len(numbers) == 1 and numbers[0] > 0, numbers

        ranks.with_group(body)

    def test_a_batch_that_fails_leaves_the_group_usable(self) -> None:
        def body(rank: int, size: int) -> None:
            other = 1 - rank
            fine = dist.P2POp(dist.isend, torch.ones(1), other)
            wrong = dist.P2POp(dist.irecv, torch.ones(1).expand(3), other)
            assert "clone()" in refusal(lambda: dist.batch_isend_irecv([fine, wrong]))
            sum_of_ranks(size)
            received = torch.zeros(1)
            (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, other)])
            work.wait()
            assert received.item() == 1

        ranks.with_group(body)

    def test_coalesced_by_hand(self) -> None:
        """PyTorch does this with a device where it has no coalesced function."""

        def body(rank: int, size: int) -> None:
            tensors = [torch.full((n,), float(rank + 1)) for n in (1, 1 << 16)]
            with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                for tensor in tensors:
                    dist.broadcast(tensor, 0)
                dist.broadcast(torch.ones(2), 1)
            (work,) = manager.works
            work.wait(datetime.timedelta(seconds=60))
            assert work.is_completed() and work.is_success() and len(work.result()) == 3
            assert len(work.get_future().wait()) == 3 and work._get_duration() >= 0
            assert all(torch.equal(each, torch.ones_like(each)) for each in tensors)
            assert work.get_future_result().wait() == 0
            with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                pass
            manager.wait()
            world = dist.group.WORLD
            said = ranks.refusal(
                lambda: world.reduce_scatter_tensor_coalesced([], [torch.ones(2)]))
            assert "0 elements; it must have 1" in said, said

        ranks.with_group(body)

    def test_a_batch_is_waited_for_as_a_whole(self) -> None:
        """The caller's time limit holds for the whole batch, not for each of its operations
        anew."""

        def body(rank: int, size: int) -> float:
            dist.barrier()
            if rank == 1:
                time.sleep(1.6)
                dist.send(torch.ones(1), 0)
                dist.barrier()
                dist.send(torch.ones(1), 0)
                return 0
            with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                works = [dist.irecv(torch.empty(1), 1) for _ in range(2)]
            begun = time.monotonic()
            told = refusal(lambda: manager.works[0].wait(datetime.timedelta(seconds=2)))
            taken = time.monotonic() - begun
            assert "2000 ms" in told, told
            dist.barrier()
            assert manager.works[0].wait() and all(work.is_completed() for work in works)
            return taken

        self.assertLess(ranks.with_group(body)[0], 3.4)

    def test_what_was_waited_for_leaves_the_registry(self) -> None:
        """The registry holds works for which graphs of PyTorch's compiler may wait."""
        from torch._C._distributed_c10d import _get_work_registry_size
        from torch.distributed._functional_collectives import (
            allow_inflight_collective_as_graph_input_ctx,
        )

        def body(rank: int, size: int) -> None:
            with allow_inflight_collective_as_graph_input_ctx():
                dist.all_reduce(torch.ones(4))
                dist.barrier()
                work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
                assert _get_work_registry_size() > 0
                work.wait(datetime.timedelta(seconds=60))
                dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)
                with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                    for _ in range(3):
                        dist.broadcast(torch.ones(4), 0)
                manager.wait()
                assert _get_work_registry_size() == 0

        ranks.with_group(body)

    def test_a_batch_whose_body_throws(self) -> None:
        """Nobody ends such a batch, and it keeps nothing alive. A batch belongs to one thread
        only."""

        def body(rank: int, size: int) -> None:
            state = dist.distributed_c10d._world.pg_coalesce_state
            with contextlib.suppress(ZeroDivisionError):
                with dist._coalescing_manager(device=CPU, async_ops=True):
                    dist.broadcast(torch.ones(4), 0)
                    raise ZeroDivisionError
            state.pop(dist.group.WORLD)  # PyTorch leaves this entry behind.
            seen = []
            for count in (4, 1 << 16, 4):
                tensor = torch.ones(count)
                dist.broadcast(tensor, 0)
                seen.append(weakref.ref(tensor))
                del tensor
            assert [each() is None for each in seen[:2]] == [True, True]
            with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
                other = threading.Thread(target=lambda: dist.broadcast(torch.ones(2), 0))
                other.start()
                other.join()
                dist.broadcast(torch.ones(3), 0)
            assert [len(each) for each in manager.works[0].result()] == [3]

        ranks.with_group(body)

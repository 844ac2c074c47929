# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Captures collectives in graphs of a device: see device_ranks.py."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import ranks
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from device_ranks import Rank


class Graph:
    """A graph of the double of a device."""

    def __init__(self, double: ctypes.CDLL, device: int) -> None:
        self.double, self.device = double, device
        self.handle = ctypes.c_void_p(double.fake_device_end_capture(device))

    def __del__(self) -> None:
        if self.handle:
            self.double.fake_device_destroy(self.handle)

    def launch(self) -> None:
        self.double.fake_device_launch(self.device, self.handle)


def graphs_hold_collectives(one: Rank) -> None:
    """Tests graphs with NCCL. Most collectives sum twice the input; the double runs a graph in any
    order that it allows."""
    given = one.value(one.device, 4)
    several = [torch.zeros(4, device=one.device) for _ in range(4)]
    beside = torch.zeros(4, device=one.device)
    columns = torch.zeros(4, 2, device=one.device)
    batch = [torch.zeros(4, device=one.device) for _ in range(2)]
    results = [torch.zeros(4, device=one.device) for _ in range(6)]
    gathered = [[torch.zeros(4, device=one.device) for _ in range(2)] for _ in range(one.size)]
    kept = [torch.zeros(4, device=one.device) for _ in range(2)]
    double = dist.AllreduceOptions()
    double.reduceOp = dist._make_nccl_premul_sum(2.0)

    def body() -> None:
        for each in (*several, *batch, columns[:, 1]):
            each.copy_(given)
        first = one.backend.allreduce([several[0]], double)
        assert first.is_completed() and first.is_success(), "it is in the graph"
        second = one.backend.allreduce([several[1]], double)
        beside.copy_(given)
        first.wait()
        results[0].copy_(several[0])
        second.get_future().wait()
        results[1].copy_(several[1])
        one.backend.allreduce([columns[:, 1]], double).wait()  # It is copied.
        results[2].copy_(columns[:, 1])
        said = ranks.refusal(
            lambda: one.backend.allocate_tensor(2, dtype=torch.float32, device=one.device)
        )
        assert "a CUDA graph is being captured" in said, said
        one.backend.allreduce([several[2]], double)  # Nobody waits for this work.
        results[3].copy_(several[2])
        both = dist.AllreduceCoalescedOptions()
        one.backend.allreduce_coalesced([several[3]], both).wait()
        results[4].copy_(several[3])
        one.group._start_coalescing(one.device)
        parts = [one.backend.allreduce([each], double) for each in batch]
        one.group._end_coalescing(one.device).wait()
        results[5].copy_(batch[0])
        parts.clear()
        one.backend.allgather_coalesced(gathered, [given, given]).wait()
        for place, part in zip(kept, gathered[-1]):
            place.copy_(part)

    launch = one.capture(body)
    host = one.value(torch.device("cpu"), 4)
    total = sum(((torch.arange(4) * 7 + r) % 11).float() for r in range(one.size))
    for number in range(1, 6):
        given.copy_(host * number)
        launch()
        for result in (*results[:4], results[5]):
            assert torch.equal(result.cpu(), 2 * number * total), (number, result.cpu())
        assert torch.equal(results[4].cpu(), number * total), (number, results[4].cpu())
        assert torch.equal(beside.cpu(), host * number), (number, beside.cpu())
        last = ((torch.arange(4) * 7 + one.size - 1) % 11).float() * number
        assert all(torch.equal(each.cpu(), last) for each in kept), (number, kept)
        one.backend.allreduce([results[0]]).wait()  # This call is not part of a graph.

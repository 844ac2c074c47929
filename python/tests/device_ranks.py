# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Ranks on a device, and the functions that tests run on them.

These tests need no GPU, and except with GpuRank they do not prove that one works: NCCL, its driver,
our kernels and PyTorch's device are doubles (tests/support/fake_nccl, fake_device), whose memory
the host cannot access and whose streams are late. The double of NCCL supports only ranks that are
threads of one process.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import threading
import time
import traceback
import types
from typing import Any, Callable

import ranks
import torch
import torch.distributed as dist
from device_graphs import Graph
from torch.nn.parallel import DistributedDataParallel

import stretto

BIN = pathlib.Path(os.environ["STRETTO_BUILD_DIR"]) / "bin"
DOUBLE = "fake_device"
COPIED = {  # The words of explain().
    "cuda": ", and copied to memory that the ranks map, and back",
    "stretto": ", copied to the host and back",
}


def load_double() -> ctypes.CDLL:
    os.environ["STRETTO_NCCL_LIBRARY"] = str(BIN / "libfake_nccl.so")
    os.environ["STRETTO_CUDA_DRIVER"] = str(BIN / "libfake_nccl.so")
    os.environ["STRETTO_CUDA_KERNELS"] = str(BIN / "libfake_nccl.so")
    os.environ["STRETTO_PROGRESS_THREAD"] = "always"  # Machines with GPUs have spare cores for it.
    library = ctypes.CDLL(str(BIN / "libfake_device.so"))
    library.fake_device_use_stream.restype = ctypes.c_int64
    library.fake_device_exported_bytes.restype = ctypes.c_size_t
    library.fake_device_misuse.restype = ctypes.c_char_p
    library.fake_device_end_capture.restype = ctypes.c_void_p
    torch._register_device_module(DOUBLE, types.ModuleType(f"torch.{DOUBLE}"))
    return library


class Rank:
    """The state of a rank in a test, on the double of a device."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, double: ctypes.CDLL, kind: str
    ) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self.device = torch.device(DOUBLE, rank)
        self.double = double
        double.fake_device_use_device(rank)
        self.start(store)

    def start(self, store: dist.Store) -> None:
        rank, size = self.rank, self.size
        options = stretto.Options(backend=self.kind)
        self.backend = stretto._module().create(
            store, rank, size, 60.0, "doubles", list(range(size)), options, False
        )
        self.group = dist.ProcessGroup(dist.PrefixStore("group", store), rank, size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self.group._set_default_backend(kind)
        for device in (torch.device("cpu"), self.device):
            self.group._register_backend(device, kind, self.backend)

    def use_stream(self, number: int = -1) -> int:
        """Makes this stream the thread's current one and returns its number. -1 creates a new
        stream; 0 is the default stream."""
        return self.double.fake_device_use_stream(self.rank, ctypes.c_int64(number))

    def capture(self, body: Callable[[], object]) -> Callable[[], object]:
        """Captures `body` on its own stream, and returns a function that launches the graph."""
        self.use_stream()
        self.double.fake_device_begin_capture(self.rank)
        try:
            body()
        finally:
            graph = Graph(self.double, self.rank)
        assert graph.handle, "the graph is spoiled"
        return graph.launch

    def be_busy(self) -> None:
        """Does nothing: the double's streams are late anyway."""

    def value(self, device: torch.device, *shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count) * 7 + self.rank) % 11).float().reshape(shape).to(device)

    def sum_over_ranks(self) -> float:
        """Returns the sum of (rank + 1) over all ranks."""
        return self.size * (self.size + 1) / 2


class GpuRank(Rank):
    """A rank on the GPU that all ranks share. NCCL allows only one rank per GPU."""

    def __init__(self, store: dist.Store, rank: int, size: int, kind: str) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self.device = torch.device("cuda", 0)
        self.streams = [torch.cuda.default_stream()]
        self.start(store)

    def use_stream(self, number: int = -1) -> int:
        if number < 0:
            self.streams.append(torch.cuda.Stream())
        torch.cuda.set_stream(self.streams[number])
        return number % len(self.streams)

    def capture(self, body: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph.replay

    def be_busy(self) -> None:
        torch.cuda._sleep(20_000_000)  # 20 million cycles: about 10 ms.


def on_ranks(
    function: Callable[[Rank], Any], size: int = 2, delay_us: int = 500, kind: str = "nccl"
) -> None:
    """Runs the ranks as threads of a separate process, so that no other test uses the device."""

    def all_ranks(_rank: int, _size: int, _path: str) -> None:
        double = load_double()
        # A forked process creates autograd's engine again when it first needs it. If two threads
        # need it at once, both may create it, and one of them then uses freed memory.
        torch.ones((), requires_grad=True).backward()
        double.fake_device_set_delay(delay_us)
        store = dist.HashStore()
        problems = []

        def be(rank: int) -> None:
            try:
                one = Rank(store, rank, size, double, kind)
                try:
                    function(one)
                except BaseException:
                    one.backend.abort()
                    raise
                one.backend.shutdown()
            except BaseException:
                problems.append(f"rank {rank}:\n{traceback.format_exc()}")

        threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, "\n".join(problems)
        assert double.fake_device_misuse() == b"", double.fake_device_misuse()

    ranks.run(all_ranks, size=1)


def collectives(one: Rank, device: torch.device) -> list[torch.Tensor]:
    """Calls all collectives, and returns their results."""
    group, size, left = one.group, one.size, []

    def made(*shape: int) -> torch.Tensor:
        left.append(one.value(device, *shape))
        return left[-1]

    def several(*shape: int) -> list[torch.Tensor]:
        return [made(*shape) for _ in range(size)]

    def mixed() -> list[torch.Tensor]:
        doubles = made(2).double()
        left.append(doubles)
        return [made(3), doubles, made(5, 2).t()]

    last = size - 1
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(made(5, 3), op, group=group)
    dist.all_reduce(made(0), group=group)
    dist.all_reduce(made(3, 4, 2).permute(2, 0, 1), group=group)
    dist.broadcast(made(7), group_src=last, group=group)
    dist.broadcast(made(6, 4)[:, 1:3], group_src=last, group=group)
    dist.reduce(made(4), group_dst=last, group=group)
    dist.all_gather(several(3), made(3), group=group)
    dist.all_gather([output.t() for output in several(3, 2)], made(2, 3), group=group)
    dist.all_gather_into_tensor(made(3 * size), made(3), group=group)
    dist.gather(made(3), several(3) if one.rank == last else None, group_dst=last, group=group)
    dist.scatter(made(3), several(3) if one.rank == 0 else None, group_src=0, group=group)
    dist.reduce_scatter(made(3), several(3), group=group)
    dist.reduce_scatter_tensor(made(3), made(3 * size), group=group)
    dist.all_to_all_single(made(2 * size), made(2 * size), group=group)
    one.backend.allreduce_coalesced(mixed()).wait()
    one.backend.allgather_coalesced([mixed() for _ in range(size)], mixed()).wait()
    half = dist._make_nccl_premul_sum(0.5)
    dist.all_reduce(made(4), half, group=group)
    dist.reduce(made(4), group_dst=last, op=half, group=group)
    dist.reduce_scatter(made(3), several(3), half, group=group)
    dist.reduce_scatter_tensor(made(3), made(3 * size), half, group=group)
    splits = [r + one.rank + 1 for r in range(size)]
    for sent in (splits, [0 if last in (r, one.rank) else n for r, n in enumerate(splits)]):
        dist.all_to_all_single(made(sum(sent)), made(sum(sent)), sent, sent, group=group)
    dist.all_to_all(several(2), several(2), group=group)
    if size > 1:
        after, before = (one.rank + 1) % size, (one.rank - 1) % size
        sent = [one.backend.send([made(4, 3).t()], after, tag) for tag in (0, 1)]
        one.backend.recv([made(3, 4)], before, 1).wait()
        one.backend.recv_anysource([made(4, 3).t()], 0).wait()
        for work in sent:
            work.wait()
    dist.barrier(group=group)
    return [tensor.cpu() for tensor in left]


def equals_the_cpu(one: Rank) -> None:
    wanted = collectives(one, torch.device("cpu"))
    found = collectives(one, one.device)
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(a, b), (number, a, b)


def reaches_the_device(one: Rank) -> None:
    before = one.double.fake_device_launches()
    equals_the_cpu(one)
    # Operations that do not reduce need no kernel of ours; by way of the host, none does.
    least = {"nccl": 17, "cuda": 10, "stretto": 0}[one.kind]
    assert one.double.fake_device_launches() - before >= least


def waits_for_the_current_stream(one: Rank) -> None:
    for _ in range(5):
        one.use_stream()
        tensor = torch.zeros(1000, device=one.device)
        one.be_busy()
        tensor.fill_(one.rank + 1)  # The stream runs this late.
        dist.all_reduce(tensor, group=one.group)
        assert torch.equal(tensor.cpu(), torch.full((1000,), one.sum_over_ranks())), tensor.cpu()


def copied_results_reach_other_streams(one: Rank) -> None:
    """A result that is not contiguous is copied on the stream that was current at the call."""
    for turn in range(6):
        before = one.use_stream(0)
        one.use_stream()
        one.be_busy()
        tensor = one.value(one.device, 40, 30)
        work = dist.all_reduce(tensor.t(), group=one.group, async_op=True)
        one.use_stream(before)
        work.block_current_stream() if turn % 2 else work.wait()
        parts = (
            Rank.value(types.SimpleNamespace(rank=rank), torch.device("cpu"), 40, 30)
            for rank in range(one.size)
        )
        wanted = torch.stack(list(parts)).sum(0)
        assert torch.equal(tensor.cpu(), wanted), (tensor.cpu(), wanted)


def results_of_batches_reach_other_streams(one: Rank) -> None:
    """This includes an operation that has ended before the next one of the batch is called."""
    for _ in range(4):
        before = one.use_stream(0)
        one.use_stream()
        one.be_busy()
        tensor = torch.full((40, 30), one.rank + 1.0, device=one.device)
        one.group._start_coalescing(one.device)
        first = dist.all_reduce(tensor.t(), group=one.group, async_op=True)
        while not first.is_completed():
            time.sleep(0.0001)
        dist.all_reduce(torch.ones(1), group=one.group)
        work = one.group._end_coalescing(one.device)
        one.use_stream(before)
        work.wait()
        assert torch.equal(tensor.cpu(), torch.full((40, 30), one.sum_over_ranks())), tensor.cpu()


def futures_wait_too(one: Rank) -> None:
    one.be_busy()
    tensor = torch.full((8, 4), one.rank + 1.0, device=one.device)
    work = dist.all_reduce(tensor.t(), group=one.group, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    made = work.get_future().then(lambda _: torch.empty(1, device=one.device.type).device.index)
    doubled.wait()
    wanted = torch.full((4, 8), 2 * one.sum_over_ranks())
    assert torch.equal(doubled.value().cpu(), wanted), doubled.value().cpu()
    assert made.wait() == one.device.index, made.value()


def inputs_may_be_dropped(one: Rank) -> None:
    for shape in ((500,), (25, 20)):
        output = torch.empty(one.size * 500, device=one.device)
        one.be_busy()
        work = dist.all_gather_into_tensor(
            output,
            torch.full(shape, one.rank + 1.0, device=one.device).t(),
            group=one.group,
            async_op=True,
        )
        work.wait()
        wanted = torch.arange(1.0, one.size + 1).repeat_interleave(500)
        assert torch.equal(output.cpu(), wanted), output.cpu()


def copied_inputs_may_be_dropped(one: Rank) -> None:
    """This includes inputs allocated on another stream than the one that copies them."""
    wanted = torch.arange(1.0, one.size + 1).repeat_interleave(500)
    for _ in range(4):
        one.use_stream(0)
        output = torch.empty(one.size * 500, device=one.device)
        tensor = torch.full((25, 20), one.rank + 1.0, device=one.device)
        tensor.cpu()  # Waits until the tensor is written.
        one.use_stream()
        first, second = torch.zeros(2, 1, device=one.device)
        for _ in range(20):  # The double delays each copy.
            second.copy_(first)
        one.be_busy()
        work = dist.all_gather_into_tensor(output, tensor.t(), group=one.group, async_op=True)
        del tensor
        one.use_stream(0)
        torch.full((25, 20), -1.0, device=one.device)  # A GPU reuses freed memory for this.
        work.wait()
        assert torch.equal(output.cpu(), wanted), output.cpu()


def trains(one: Rank) -> list[torch.nn.Parameter]:
    """Compares PyTorch's DistributedDataParallel on the device with one process on the whole batch.
    Returns parameters whose gradients are views of the buckets."""

    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    with SEED_LOCK:
        alone, module = model(), model()
    replica = DistributedDataParallel(
        module.to(one.device), process_group=one.group, gradient_as_bucket_view=True
    )
    steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, replica)]
    for number in range(4):
        batch = torch.linspace(-1, 1, 12 * 6).reshape(12, 6) * (number + 1)
        share = batch[one.rank :: one.size].to(one.device)
        for step in steps:
            step.zero_grad()
        alone(batch).square().mean().backward()
        replica(share).square().mean().backward()
        for step in steps:
            step.step()
    for a, b in zip(replica.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.cpu(), b, atol=1e-6), (a.cpu(), b)
    return list(replica.parameters())


SEED_LOCK = threading.Lock()


def has_memory_without_copies(one: Rank) -> None:
    """Operations use memory that the group has allocated in place, in the order of the stream."""
    tensor = one.backend.allocate_tensor(6, dtype=torch.float32, device=one.device)
    tensor.fill_(one.rank + 1)
    dist.all_reduce(tensor, group=one.group)
    assert torch.equal(tensor.cpu(), torch.full((6,), one.sum_over_ranks())), tensor.cpu()
    parts = one.backend.allocate_tensor(4 * one.size, dtype=torch.int64, device=one.device)
    dist.all_gather(list(parts.chunk(one.size)), one.value(one.device, 4).long(), group=one.group)
    wanted = torch.empty(4 * one.size, dtype=torch.int64)
    own = one.value(torch.device("cpu"), 4).long()
    dist.all_gather_into_tensor(wanted, own, group=one.group)
    assert torch.equal(parts.cpu(), wanted), (parts.cpu(), wanted)
    # The parts of this list are not in order in memory, so it is copied.
    dist.all_gather(list(parts.chunk(one.size))[::-1], own.to(one.device), group=one.group)
    assert torch.equal(parts.cpu(), torch.cat(wanted.chunk(one.size)[::-1])), parts.cpu()
    # A column of this table is not contiguous.
    table = one.backend.allocate_tensor(12, dtype=torch.float32, device=one.device).view(4, 3)
    table.fill_(one.rank + 1)
    dist.all_reduce(table[:, 1], group=one.group)
    wanted = torch.full((4, 3), one.rank + 1.0)
    wanted[:, 1] = one.sum_over_ranks()
    assert torch.equal(table.cpu(), wanted), table.cpu()


def blocks_are_not_shared(one: Rank) -> None:
    """Concurrent copies on several streams use different blocks."""
    streams = [one.use_stream() for _ in range(3)]
    sizes = (7, 1000, 300_000, 1_100_000, 12, 1_000_000)
    for _ in range(2):
        tensors, works = [], []
        for number, size in enumerate(sizes):
            one.use_stream(streams[number % 3])
            one.be_busy()
            tensors.append(torch.full((size,), one.rank + float(number), device=one.device))
            works.append(dist.all_reduce(tensors[-1], group=one.group, async_op=True))
        for work in works:
            work.wait()
        for number, tensor in enumerate(tensors):
            wanted = one.sum_over_ranks() + one.size * (number - 1)
            assert torch.equal(tensor.cpu(), torch.full(tensor.shape, wanted)), (number, tensor)


def blocks_go_from_stream_to_stream(one: Rank) -> None:
    """Another stream may get a block from which a result is still being copied."""
    first, second, third = (one.use_stream() for _ in range(3))
    for _ in range(5):
        one.use_stream(first)
        tensor = torch.full((600_000,), one.rank + 1.0, device=one.device)
        work = dist.all_reduce(tensor, group=one.group, async_op=True)
        one.use_stream(third)
        work.wait()
        one.use_stream(second)
        dist.all_reduce(torch.zeros(600_000, device=one.device), group=one.group)
        one.use_stream(third)
        assert torch.equal(tensor.cpu(), torch.full((600_000,), one.sum_over_ranks())), tensor


def blocks_are_read_before_the_host_writes(one: Rank) -> None:
    """The host must not write to a block from which a result is still being copied. The broadcast's
    input is on the CPU of rank 0, where nothing is late."""
    place = torch.device("cpu") if one.rank == 0 else one.device
    options = dist.BroadcastOptions()
    options.rootRank = 0
    one.use_stream()
    tensors = [torch.full((300_000,), number + one.rank * 0.5, device=place) for number in range(6)]
    for tensor in tensors:
        one.be_busy()
        one.backend.broadcast([tensor], options).wait()
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor.cpu(), torch.full(tensor.shape, float(number))), (number, tensor)


def results_outlive_the_group(one: Rank) -> None:
    """A result may still be being copied when its group ends."""
    one.use_stream()
    tensor = torch.full((600_000,), one.rank + 1.0, device=one.device)
    work = dist.all_reduce(tensor, group=one.group, async_op=True)
    one.be_busy()
    work.wait()
    one.backend.shutdown()
    assert torch.equal(tensor.cpu(), torch.full((600_000,), one.sum_over_ranks())), tensor.cpu()


def blocks_are_bounded(one: Rank) -> None:
    """The blocks that are kept have at most twice the size of the largest concurrent use. When the
    groups of all ranks have ended, nothing is kept."""
    piece = 1 << 19  # Elements of 4 bytes in one of the smallest large blocks.
    tensor = torch.zeros(11 * piece, device=one.device)
    for pieces in (*range(1, 12), *range(11, 0, -1)):
        dist.all_reduce(tensor[: pieces * piece], group=one.group)
        kept = one.double.fake_device_exported_bytes()
        assert kept <= one.size * 2 * tensor.nbytes, (pieces, kept)
    one.backend.shutdown()
    deadline = time.monotonic() + ranks.TIMEOUT_SECONDS
    while one.double.fake_device_exported_bytes() > 0:
        assert time.monotonic() < deadline, one.double.fake_device_exported_bytes()
        time.sleep(0.01)


def trains_with_buckets(one: Rank, are_mapped: bool) -> None:
    """If DDP_DISABLE_COMM_MEM is "0", PyTorch allocates its buckets from the group."""
    os.environ["DDP_DISABLE_COMM_MEM"] = "0" if are_mapped else "1"
    for parameter in trains(one):
        said = stretto._module().explain(one.backend, "all_reduce", parameter.grad)
        is_copied = one.kind == "stretto" or (one.kind == "cuda" and not are_mapped)
        assert said.endswith(tuple(COPIED.values())) == is_copied, said


WITH_LATE_STREAMS = (
    waits_for_the_current_stream,
    copied_results_reach_other_streams,
    results_of_batches_reach_other_streams,
    futures_wait_too,
    inputs_may_be_dropped,
    copied_inputs_may_be_dropped,
)
EVERYWHERE = (equals_the_cpu, *WITH_LATE_STREAMS, trains)
BY_THE_HOST = (
    *EVERYWHERE,
    blocks_are_not_shared,
    blocks_go_from_stream_to_stream,
    blocks_are_read_before_the_host_writes,
    results_outlive_the_group,  # It shuts the group down, so it is last.
)
WHERE_RANKS_MAP_DEVICES = (
    *EVERYWHERE,
    functools.partial(trains_with_buckets, are_mapped=True),
    has_memory_without_copies,
    blocks_are_not_shared,
    blocks_go_from_stream_to_stream,
)

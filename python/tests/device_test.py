# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tensors on a device: served where the group has NCCL, and refused with a sentence where not.

No GPU is needed, and none is shown to work: NCCL, its driver and PyTorch's device are doubles
(tests/support/fake_nccl, fake_device), whose memory the host cannot touch and whose streams are
late. That NCCL knows only ranks that are threads of one process."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
import traceback
import types
import unittest
from typing import Any, Callable

import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import stretto

BIN = pathlib.Path(os.environ["STRETTO_BUILD_DIR"]) / "bin"
DOUBLE = "fake_device"


def load_double() -> ctypes.CDLL:
    os.environ["STRETTO_NCCL_LIBRARY"] = str(BIN / "libfake_nccl.so")
    os.environ["STRETTO_CUDA_DRIVER"] = str(BIN / "libfake_nccl.so")
    library = ctypes.CDLL(str(BIN / "libfake_device.so"))
    library.fake_device_use_stream.restype = ctypes.c_int64
    library.fake_device_misuse.restype = ctypes.c_char_p
    torch._register_device_module(DOUBLE, types.ModuleType(f"torch.{DOUBLE}"))
    return library


class Rank:
    """What a test has on each rank, on the double of a device."""

    def __init__(self, store: dist.Store, rank: int, size: int, double: ctypes.CDLL) -> None:
        self.rank, self.size = rank, size
        self.device = torch.device(DOUBLE, rank)
        self.double = double
        double.fake_device_use_device(rank)
        self.start(store)

    def start(self, store: dist.Store) -> None:
        rank, size = self.rank, self.size
        options = stretto._module().JoinOptions(None, None, False, "nccl")
        self.backend = stretto._module().create(
            store, rank, size, 60.0, "doubles", list(range(size)), options
        )
        self.group = dist.ProcessGroup(dist.PrefixStore("group", store), rank, size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self.group._set_default_backend(kind)
        for device in (torch.device("cpu"), self.device):
            self.group._register_backend(device, kind, self.backend)

    def use_stream(self, number: int = -1) -> int:
        """As this thread's current one; -1: a new one, 0: the default one. Returns the last one."""
        return self.double.fake_device_use_stream(self.rank, ctypes.c_int64(number))

    def be_busy(self) -> None:
        """The double's streams are late without it."""

    def value(self, device: torch.device, *shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count) * 7 + self.rank) % 11).float().reshape(shape).to(device)

    def sum_over_ranks(self) -> float:
        """Of what is one more than a rank."""
        return self.size * (self.size + 1) / 2


class GpuRank(Rank):
    """On a GPU, by NCCL, which takes one rank for each."""

    def __init__(self, store: dist.Store) -> None:
        self.rank, self.size = 0, 1
        self.device = torch.device("cuda", 0)
        self.streams = [torch.cuda.default_stream()]
        self.start(store)

    def use_stream(self, number: int = -1) -> int:
        before = self.streams.index(torch.cuda.current_stream())
        if number < 0:
            self.streams.append(torch.cuda.Stream())
        torch.cuda.set_stream(self.streams[number])
        return before

    def be_busy(self) -> None:
        torch.cuda._sleep(20_000_000)  # Cycles: some 10 ms.


def on_ranks(function: Callable[[Rank], Any], size: int = 2, delay_us: int = 500) -> None:
    """In a process of its own, so that no other test has the device."""

    def all_ranks(_rank: int, _size: int, _path: str) -> None:
        double = load_double()
        double.fake_device_set_delay(delay_us)
        store = dist.HashStore()
        problems = []

        def be(rank: int) -> None:
            try:
                one = Rank(store, rank, size, double)
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
    """All of them, and what they leave."""
    group, size, left = one.group, one.size, []

    def made(*shape: int) -> torch.Tensor:
        left.append(one.value(device, *shape))
        return left[-1]

    def several(*shape: int) -> list[torch.Tensor]:
        return [made(*shape) for _ in range(size)]

    last = size - 1
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(made(5, 3), op, group=group)
    dist.all_reduce(made(4), dist._make_nccl_premul_sum(0.5), group=group)
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
    splits = [r + one.rank + 1 for r in range(size)]
    dist.all_to_all_single(made(sum(splits)), made(sum(splits)), splits, splits, group=group)
    dist.all_to_all(several(2), several(2), group=group)
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
    assert one.double.fake_device_launches() - before >= 17


def waits_for_the_current_stream(one: Rank) -> None:
    for _ in range(5):
        one.use_stream()
        tensor = torch.zeros(1000, device=one.device)
        one.be_busy()
        tensor.fill_(one.rank + 1)  # Reaches its place late.
        dist.all_reduce(tensor, group=one.group)
        assert torch.equal(tensor.cpu(), torch.full((1000,), one.sum_over_ranks())), tensor.cpu()


def copied_results_reach_other_streams(one: Rank) -> None:
    """A result that is not contiguous is copied, on the stream that was current at the call."""
    for _ in range(5):
        before = one.use_stream(0)
        one.use_stream()
        one.be_busy()
        tensor = one.value(one.device, 40, 30)
        work = dist.all_reduce(tensor.t(), group=one.group, async_op=True)
        one.use_stream(before)
        work.wait()
        parts = (
            Rank.value(types.SimpleNamespace(rank=rank), torch.device("cpu"), 40, 30)
            for rank in range(one.size)
        )
        wanted = torch.stack(list(parts)).sum(0)
        assert torch.equal(tensor.cpu(), wanted), (tensor.cpu(), wanted)


def futures_wait_too(one: Rank) -> None:
    one.be_busy()
    tensor = torch.full((8, 4), one.rank + 1.0, device=one.device)
    work = dist.all_reduce(tensor.t(), group=one.group, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    doubled.wait()
    wanted = torch.full((4, 8), 2 * one.sum_over_ranks())
    assert torch.equal(doubled.value().cpu(), wanted), doubled.value().cpu()


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


def trains(one: Rank) -> None:
    """PyTorch's DistributedDataParallel on the device, beside one process on the whole batch."""

    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    with SEED_LOCK:
        alone, module = model(), model()
    replica = DistributedDataParallel(module.to(one.device), process_group=one.group)
    steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, replica)]
    for number in range(4):
        batch = torch.linspace(-1, 1, 8 * 6).reshape(8, 6) * (number + 1)
        share = batch[one.rank :: one.size].to(one.device)
        for step in steps:
            step.zero_grad()
        alone(batch).square().mean().backward()
        replica(share).square().mean().backward()
        for step in steps:
            step.step()
    for a, b in zip(replica.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(a.cpu(), b, atol=1e-6), (a.cpu(), b)


SEED_LOCK = threading.Lock()


def on_a_gpu(rank: int, size: int, path: str) -> None:
    """All that a GPU can be asked by one rank."""
    one = GpuRank(dist.HashStore())
    for function in (
        equals_the_cpu,
        waits_for_the_current_stream,
        copied_results_reach_other_streams,
        futures_wait_too,
        inputs_may_be_dropped,
        trains,
    ):
        one.use_stream(0)
        function(one)
    one.backend.shutdown()
    one.use_stream(0)
    ranks.start(path, rank, size, pg_options=stretto.Options(backend="nccl"))
    tensor = torch.full((4,), 2.0, device="cuda")
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full((4,), 2.0))
    assert stretto.explain("all_reduce", tensor) == "nccl: the tensor is on cuda:0"
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


def refuses_what_nccl_does_not_reach(one: Rank) -> None:
    other = torch.ones(2, device=torch.device(DOUBLE, one.rank + 2))
    calls: dict[str, Callable[[], object]] = {
        f"this tensor is on {DOUBLE}:{one.rank + 2}, and NCCL works on device {one.rank} of this "
        f"process; put the tensor there, or start this rank with STRETTO_DEVICE={one.rank + 2}": (
            lambda: one.backend.allreduce([other])
        ),
        "this tensor is on meta, which is no memory that this group reaches": (
            lambda: one.backend.allreduce([torch.ones(2, device="meta")])
        ),
        "some buffers lie in memory of a device and some in memory of the host": (
            lambda: one.backend._allgather_base(
                torch.ones(2 * one.size), torch.ones(2, device=one.device)
            )
        ),
        "NCCL": lambda: one.backend.allreduce(
            [torch.ones(2, device=one.device).short()], dist.AllreduceOptions()
        ),
        "messages are not moved to or from memory of a device": (
            lambda: one.backend.send([torch.ones(2, device=one.device)], 1 - one.rank, 0)
        ),
    }
    for text, call in calls.items():
        said = ranks.refusal(call)
        assert text in said, said
    if torch.__version__ >= "2.13":  # Older ones cannot be asked.
        one.double.fake_device_capture(True)
        said = ranks.refusal(lambda: one.backend.allreduce([torch.ones(2, device=one.device)]))
        one.double.fake_device_capture(False)
        assert "captured by a graph of the device, which cannot hold collectives" in said, said
    hook = stretto.hooks.top_k()._hook
    said = ranks.refusal(
        lambda: hook.attach(one.backend, ["weight"], [torch.ones(2, device=one.device)])
    )
    assert f"parameter 'weight' is on {DOUBLE}:{one.rank}, and stretto.hooks" in said, said


def refuses_all_devices_without_nccl(rank: int, size: int) -> None:
    """Every function that Python reaches. The device "meta" stands for all others."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def one() -> torch.Tensor:
        return torch.ones(2, device="meta")

    def all_ranks() -> list[torch.Tensor]:
        return [one() for _ in range(size)]

    gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
    gather.rootRank = scatter.rootRank = rank
    flat = torch.ones(2 * size, device="meta")
    calls = {
        "broadcast": lambda: backend.broadcast([one()], dist.BroadcastOptions()),
        "allreduce": lambda: backend.allreduce([one()], dist.AllreduceOptions()),
        "allreduce_coalesced": lambda: backend.allreduce_coalesced([one(), one()]),
        "reduce": lambda: backend.reduce([one()], dist.ReduceOptions()),
        "allgather": lambda: backend.allgather([all_ranks()], [one()]),
        "_allgather_base": lambda: backend._allgather_base(flat, one()),
        "allgather_coalesced": lambda: backend.allgather_coalesced([[one()]] * size, [one()]),
        "gather": lambda: backend.gather([all_ranks()], [one()], gather),
        "scatter": lambda: backend.scatter([one()], [all_ranks()], scatter),
        "reduce_scatter": lambda: backend.reduce_scatter([one()], [all_ranks()]),
        "_reduce_scatter_base": lambda: backend._reduce_scatter_base(one(), flat),
        "alltoall_base": lambda: backend.alltoall_base(flat, flat, [], []),
        "alltoall": lambda: backend.alltoall(all_ranks(), all_ranks(), dist.AllToAllOptions()),
        "send": lambda: backend.send([one()], 1 - rank, 0),
        "recv": lambda: backend.recv([one()], 1 - rank, 0),
        "recv_anysource": lambda: backend.recv_anysource([one()], 0),
        "explain": lambda: stretto.explain("all_reduce", one()),
    }
    for name, call in calls.items():
        said = ranks.refusal(call)
        assert "this tensor is on meta, and this group moves tensors of the CPU" in said, (
            name,
            said,
        )
        assert "STRETTO_BACKEND=nccl" in said and 'backend="nccl"' in said, (name, said)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), device="meta")
    said = ranks.refusal(lambda: backend.allreduce([sparse]))
    assert "only those on the CPU are reduced" in said, said
    there = {"dtype": torch.float, "device": torch.device("meta")}
    said = ranks.refusal(lambda: backend.allocate_tensor(2, **there))
    assert "memory of the CPU, not of meta" in said, said
    said = ranks.refusal(lambda: stretto.hooks.f16()._hook.attach(backend, ["w"], [one()]))
    assert "parameter 'w' is on meta, and stretto.hooks" in said, said
    dist.all_reduce(torch.ones(1))  # And all goes on.


def a_user_comes_to_it(rank: int, size: int, path: str) -> None:
    """By init_process_group, with one rank, which is all that this double of NCCL has here."""
    double = load_double()
    both = f"cpu:stretto,{DOUBLE}:stretto"
    ranks.start(path, rank, size, both, pg_options=stretto.Options(backend="nccl"))
    tensor = torch.full((4,), 2.0, device=f"{DOUBLE}:0")
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full((4,), 2.0))
    assert stretto.explain("all_reduce", tensor) == f"nccl: the tensor is on {DOUBLE}:0"
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    assert double.fake_device_misuse() == b""


def says_what_is_missing(rank: int, size: int, path: str) -> None:
    os.environ["STRETTO_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
    options = stretto.Options(backend="nccl")
    said = ranks.refusal(lambda: ranks.start(path, rank, size, pg_options=options))
    assert "NCCL cannot be loaded (/nowhere/libnccl.so.2" in said, said


class GpuTest(unittest.TestCase):
    # Asks the driver's management library: processes are forked from this one.
    @unittest.skipIf(torch.cuda.device_count() == 0, "skipped: no GPU")
    def test_one_rank(self) -> None:
        ranks.run(on_a_gpu, size=1)


class DeviceTest(unittest.TestCase):
    def test_collectives(self) -> None:
        for size in (2, 3):
            with self.subTest(size=size):
                on_ranks(reaches_the_device, size)

    def test_late_streams(self) -> None:
        for function in (
            waits_for_the_current_stream,
            copied_results_reach_other_streams,
            futures_wait_too,
            inputs_may_be_dropped,
        ):
            with self.subTest(function.__name__):
                on_ranks(function, delay_us=20_000)

    def test_training(self) -> None:
        on_ranks(trains)

    def test_refusals(self) -> None:
        on_ranks(refuses_what_nccl_does_not_reach)
        ranks.with_group(refuses_all_devices_without_nccl)
        ranks.run(says_what_is_missing, size=1)

    def test_from_init_process_group(self) -> None:
        ranks.run(a_user_comes_to_it, size=1)

    def test_devices_are_declared(self) -> None:
        self.assertEqual(dist.Backend.backend_capability["stretto"], ["cpu", "cuda"])
        self.assertEqual(dist.Backend.default_device_backend_map["cpu"], "gloo")
        self.assertEqual(dist.Backend.default_device_backend_map["cuda"], "nccl")

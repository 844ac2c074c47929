# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests tensors on a device: with NCCL, with the backend "cuda", by way of the host, and the texts
of refusals. All tests but GpuTest run on doubles: see device_ranks.py."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import unittest
import unittest.mock
from typing import Any, Callable

import device_hooks
import ranks
import torch
import torch.distributed as dist
from device_graphs import graphs_hold_collectives
from device_hooks import all_ranks_learn_the_same
from device_ranks import (
    BIN,
    BY_THE_HOST,
    COPIED,
    DOUBLE,
    EVERYWHERE,
    WHERE_RANKS_MAP_DEVICES,
    WITH_LATE_STREAMS,
    GpuRank,
    Rank,
    blocks_are_bounded,
    blocks_are_not_shared,
    blocks_are_read_before_the_host_writes,
    blocks_go_from_stream_to_stream,
    equals_the_cpu,
    has_memory_without_copies,
    load_double,
    on_ranks,
    reaches_the_device,
    results_outlive_the_group,
    trains_with_buckets,
)
from torch.nn.parallel import DistributedDataParallel

import stretto

MIXED = "some tensors of this operation are on {} and some on cpu"


def on_a_gpu(rank: int, size: int, path: str) -> None:
    """Everything that one rank with NCCL can test on a GPU."""
    one = GpuRank(dist.HashStore(), 0, 1, "nccl")
    for function in (*EVERYWHERE, graphs_hold_collectives, all_ranks_learn_the_same):
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


def on_a_shared_gpu(rank: int, size: int, path: str) -> None:
    """The same with several ranks, each a process, and the backend "cuda"."""
    map_devices(GpuRank(dist.FileStore(f"{path}.backend", size), rank, size, "cuda"), path)


def on_a_gpu_by_the_host(rank: int, size: int, path: str) -> None:
    one = GpuRank(dist.FileStore(f"{path}.backend", size), rank, size, "stretto")
    for function in (conjugates_are_copied, all_ranks_learn_the_same, *BY_THE_HOST):
        one.use_stream(0)
        function(one)
    one.use_stream(0)
    copies_by_the_host(rank, size, path, one.device, "stretto")
    ranks.start(f"{path}.sparse", rank, size)
    numbers = torch.tensor([[0, rank + 1]], device=one.device)
    values = torch.tensor([1.0, 2.0], device=one.device)
    sparse = torch.sparse_coo_tensor(numbers, values, (size + 1,), check_invariants=True)
    wanted = sparse.cpu()
    dist.all_reduce(sparse)
    dist.all_reduce(wanted)
    assert sparse.device == one.device and sparse.is_sparse, sparse
    assert torch.equal(sparse.cpu().to_dense(), wanted.to_dense()), (sparse, wanted)
    dist.destroy_process_group()


def conjugates_are_copied(one: Rank) -> None:
    """A device computes conjugates only when they are read; the double has no conjugates."""
    places = torch.zeros(one.size, 3, dtype=torch.complex64, device=one.device)
    ours = torch.full((3,), complex(1, one.rank), device=one.device)
    one.backend.allgather([[each.conj() for each in places]], [ours.conj()]).wait()
    for number, place in enumerate(places):
        assert torch.equal(place.cpu(), torch.full((3,), complex(1, number))), places.cpu()


def on_doubles_by_the_host(rank: int, size: int, path: str) -> None:
    double = load_double()
    both = f"cpu:stretto,{DOUBLE}:stretto"
    options = stretto.Options(backend="cuda", disable_shared_memory=True)  # As if on several hosts.
    copies_by_the_host(rank, size, path, torch.device(DOUBLE, 0), both)
    copies_by_the_host(rank, size, f"{path}.tcp", torch.device(DOUBLE, 0), both, options)
    assert double.fake_device_misuse() == b""


def copies_by_the_host(
    rank: int, size: int, path: str, there: torch.device, backends: str, options: Any = None
) -> None:
    ranks.start(path, rank, size, backends, pg_options=options)
    tensor = torch.full((4,), 2.0, device=there)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full((4,), 2.0 * size)), tensor.cpu()
    on_host = stretto.explain("all_reduce", tensor.cpu())
    assert stretto.explain("all_reduce", tensor) == on_host + COPIED["stretto"]
    for hook in (stretto.hooks.f16(), stretto.hooks.int8()):
        model = DistributedDataParallel(torch.nn.Linear(40, 40).to(there))
        hook.register(model)
        model(torch.ones(2, 40, device=there)).sum().backward()
        copy.deepcopy(model)  # This also copies the object with which the hook was registered.
    dist.destroy_process_group()


def on_doubles_of_a_host(rank: int, size: int, path: str) -> None:
    double = load_double()
    store = dist.FileStore(f"{path}.backend", size)
    map_devices(Rank(store, rank, size, double, "cuda"), path)
    assert double.fake_device_misuse() == b""


def map_devices(one: Rank, path: str) -> None:
    for function in (*WHERE_RANKS_MAP_DEVICES, all_ranks_learn_the_same):
        one.use_stream(0)
        function(one)
    one.backend.shutdown()
    one.use_stream(0)
    rank, size, there = one.rank, one.size, one.device
    both = f"cpu:stretto,{there.type}:stretto"
    ranks.start(path, rank, size, both, pg_options=stretto.Options(backend="cuda"))
    how = f"cuda: the tensor is on {there}"
    for tensor, more in (
        (torch.full((4,), 2.0, device=there), COPIED["cuda"]),
        (stretto.empty(4, device=there).fill_(2), ""),
    ):
        dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), torch.full((4,), 2.0 * size)), tensor.cpu()
        assert stretto.explain("all_reduce", tensor) == how + more
    dist.all_reduce(torch.ones(2))
    tensor = torch.ones(4, device=there)
    inherited, own = dist.new_group(), dist.new_group(pg_options=stretto.Options())
    for group, copied in ((inherited, COPIED["cuda"]), (own, COPIED["stretto"])):
        dist.all_reduce(tensor, group=group)
        assert stretto.explain("all_reduce", tensor, group).endswith(copied)
    assert torch.equal(tensor.cpu(), torch.full((4,), float(size * size))), tensor.cpu()
    # Each rank is rank 0 of its group, and still uses its own device.
    for options in (None, stretto.Options(backend="cuda")):
        alone = [dist.new_group([each], pg_options=options) for each in range(size)][rank]
        dist.all_reduce(tensor, group=alone)
        assert stretto.explain("all_reduce", tensor, alone) == how + COPIED["cuda"]
    dist.destroy_process_group()


def refuses_what_nccl_does_not_reach(one: Rank) -> None:
    other = torch.ones(2, device=torch.device(DOUBLE, one.rank + 2))
    calls: dict[str, Callable[[], object]] = {
        f"this tensor is on {DOUBLE}:{one.rank + 2}, and this group works on device {one.rank} of "
        f"this process; put the tensor there, or start this rank with "
        f"STRETTO_DEVICE={one.rank + 2}": lambda: one.backend.allreduce([other]),
        "this tensor is on meta, which is no memory that this group reaches": (
            lambda: one.backend.allreduce([torch.ones(2, device="meta")])
        ),
        MIXED.format(one.device): lambda: one.backend._allgather_base(
            torch.ones(2 * one.size), torch.ones(2, device=one.device)
        ),
        "NCCL": lambda: one.backend.allreduce(
            [torch.ones(2, device=one.device).short()], dist.AllreduceOptions()
        ),
    }
    for text, call in calls.items():
        said = ranks.refusal(call)
        assert text in said, said


def refuses_captures(one: Rank) -> None:
    if torch.__version__ < "2.13":  # Older versions do not tell whether a capture runs.
        return
    tensor = torch.ones(2, device=one.device)
    said = []
    one.capture(lambda: said.append(ranks.refusal(lambda: one.backend.allreduce([tensor]))))
    one.use_stream(0)
    assert "a graph of the device, which can hold collectives by NCCL only" in said[0], said


def refuses_what_the_host_does_not_copy(one: Rank) -> None:
    refuses_captures(one)
    here, there = torch.ones(2), torch.ones(2, device=one.device)
    inputs = [here] * one.size
    inputs[-1] = there
    for call in (
        lambda: one.backend._allgather_base(torch.ones(2 * one.size), there),
        lambda: one.backend.reduce_scatter([here], [inputs]),
    ):
        said = ranks.refusal(call)
        assert MIXED.format(one.device) in said or f"on cpu and some on {one.device}" in said, said
    said = ranks.refusal(
        lambda: one.backend.allocate_tensor(2, dtype=torch.float32, device=one.device)
    )
    assert f"memory of the CPU, not of {DOUBLE}" in said, said
    equals_the_cpu(one)  # The group still works.


def refuses_devices_that_ranks_do_not_map(one: Rank) -> None:
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        (
            "which is no memory that this group reaches",
            lambda: one.backend.allreduce([torch.ones(2, device="meta")]),
        ),
        (
            f"this group works on device {one.rank} of this process",
            lambda: one.backend.allreduce([torch.ones(2, device=torch.device(DOUBLE, 7))]),
        ),
    )
    for text, call in calls:
        said = ranks.refusal(call)
        assert text in said, said
    equals_the_cpu(one)  # The group still works.


def refuses_devices_without_addresses(rank: int, size: int) -> None:
    """Calls every function that Python reaches. The device "meta" stands for all such devices."""
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
        for part in ("on meta, where this group neither works", "give meta a backend of its own"):
            assert part in said, (name, said)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), device="meta")
    said = ranks.refusal(lambda: backend.allreduce([sparse]))
    assert "this one is on meta; copy it to the CPU" in said, said
    there = {"dtype": torch.float, "device": torch.device("meta")}
    said = ranks.refusal(lambda: backend.allocate_tensor(2, **there))
    assert "memory of the CPU, not of meta" in said, said
    said = ranks.refusal(lambda: stretto.hooks.int8()._hook.attach(backend, ["w"], [one()], False))
    assert "parameter 'w' is on meta, where stretto.hooks reach no memory" in said, said
    dist.all_reduce(torch.ones(1))  # The group still works.


def a_user_comes_to_it(rank: int, size: int, path: str) -> None:
    """Uses init_process_group with one rank, the most that this double of NCCL allows here."""
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


# device_count() asks the driver's management library. It must not initialize CUDA, because tests
# fork from this process.
@unittest.skipIf(torch.cuda.device_count() == 0, "skipped: no GPU")
class GpuTest(unittest.TestCase):
    def test_one_rank(self) -> None:
        ranks.run(on_a_gpu, size=1)

    def test_ranks_on_one_gpu(self) -> None:
        kernels = str(BIN / "libstretto_cuda_kernels.so")
        variables = {"STRETTO_DEVICE": "0", "STRETTO_CUDA_KERNELS": kernels}
        with unittest.mock.patch.dict(os.environ, variables):
            ranks.run(on_a_shared_gpu, size=2)
            ranks.run(on_a_gpu_by_the_host, size=2)


class DeviceTest(unittest.TestCase):
    def test_collectives(self) -> None:
        for size, kind in itertools.product((2, 3), ("nccl", "cuda", "stretto")):
            with self.subTest(size=size, kind=kind):
                on_ranks(reaches_the_device, size, kind=kind)

    def test_late_streams(self) -> None:
        for kind in ("nccl", "cuda", "stretto"):
            for function in (*WITH_LATE_STREAMS, results_outlive_the_group):
                with self.subTest(function.__name__, kind=kind):
                    on_ranks(function, delay_us=20_000, kind=kind)

    def test_graphs(self) -> None:
        for size in (1, 2, 3):
            with self.subTest(size=size):
                on_ranks(graphs_hold_collectives, size)

    def test_blocks(self) -> None:
        for size in (2, 3):
            on_ranks(has_memory_without_copies, size, kind="cuda")
            on_ranks(blocks_are_bounded, size, delay_us=0, kind="cuda")
            for kind in ("cuda", "stretto"):
                on_ranks(blocks_are_not_shared, size, delay_us=5_000, kind=kind)
                on_ranks(blocks_go_from_stream_to_stream, size, delay_us=10_000, kind=kind)
            on_ranks(blocks_are_read_before_the_host_writes, size, delay_us=20_000, kind="stretto")

    def test_training(self) -> None:
        for size, kind in ((2, "nccl"), *itertools.product((2, 3), ("cuda", "stretto"))):
            for are_mapped in (False, True):
                with self.subTest(size=size, kind=kind, are_mapped=are_mapped):
                    train = functools.partial(trains_with_buckets, are_mapped=are_mapped)
                    on_ranks(train, size, kind=kind)

    def test_hooks(self) -> None:
        for size, kind in ((2, "nccl"), (2, "stretto"), (3, "cuda")):
            for function in device_hooks.ON_DOUBLES:
                with self.subTest(function.__name__, size=size, kind=kind):
                    on_ranks(function, size, delay_us=100, kind=kind)

    def test_processes(self) -> None:
        ranks.run(on_doubles_of_a_host, size=2)
        ranks.run(on_doubles_by_the_host, size=2)

    def test_refusals(self) -> None:
        on_ranks(refuses_what_nccl_does_not_reach)
        on_ranks(refuses_devices_that_ranks_do_not_map, kind="cuda")
        on_ranks(refuses_what_the_host_does_not_copy, kind="stretto")
        ranks.with_group(refuses_devices_without_addresses)
        ranks.run(says_what_is_missing, size=1)

    def test_from_init_process_group(self) -> None:
        ranks.run(a_user_comes_to_it, size=1)

    def test_devices_are_declared(self) -> None:
        stretto._module()
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self.assertEqual(dist.Backend.backend_capability["stretto"], devices)
        self.assertEqual(dist.Backend.default_device_backend_map["cpu"], "gloo")
        self.assertEqual(dist.Backend.default_device_backend_map["cuda"], "nccl")

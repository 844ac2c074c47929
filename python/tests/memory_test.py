# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests memory that the ranks of a host have mapped, and its use by DistributedDataParallel."""

from __future__ import annotations

import gc
import pathlib
import resource
import unittest

import ranks
import torch
import torch.distributed as dist
from ranks import refusal

CPU = torch.device("cpu")


def registered_bytes() -> int:
    return dist.group.WORLD._get_backend(CPU).memory_stats()["registered_bytes"]


def mapping_of(tensor: torch.Tensor) -> str:
    """Returns the line of /proc/self/maps that contains its memory."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return line
    raise AssertionError("it is in no mapping")


class MemoryTest(unittest.TestCase):
    def test_registered_tensors(self) -> None:
        def body(rank: int, size: int) -> None:
            import stretto

            tensor = stretto.empty(3, 4, dtype=torch.float64)
            tensor.fill_(rank)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.ones(3, 4, dtype=torch.float64)), tensor
            assert "shm" in stretto.describe_links() or "process" in stretto.describe_links()
            assert "eager_mapped" in stretto.explain("all_reduce", tensor)
            with self.assertRaisesRegex(ValueError, '"allreduce" is none of: .*all_reduce'):
                stretto.explain("allreduce", tensor)
            with stretto.memory():
                layer = torch.nn.Linear(3, 2)
                given = torch.empty(3)
                assert torch.zeros(3, out=given) is given
                assert torch.zeros(3, layout=torch.sparse_coo).is_sparse
            before = registered_bytes()
            with torch.no_grad():
                layer.weight.fill_(1)
            dist.all_reduce(layer.weight.data)
            assert torch.equal(layer.weight.data, torch.full((2, 3), 2.0))
            assert layer.weight.requires_grad and layer.weight.is_leaf
            del layer
            assert registered_bytes() < before

        ranks.with_group(body)

    def test_complex_numbers(self) -> None:
        """FSDP gathers complex numbers in memory of the backend's allocate_tensor()."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        class Wave(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.weight = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

            def forward(self, values: torch.Tensor) -> torch.Tensor:
                return (values @ self.weight).abs().sum()

        def body(rank: int, size: int) -> None:
            import stretto

            backend = dist.group.WORLD._get_backend(CPU)
            made = backend.allocate_tensor(4, dtype=torch.complex64, device=CPU)
            assert made.dtype == torch.complex64 and made.shape == (4,), made
            made = stretto.empty(2, 3, dtype=torch.complex64)
            assert made.dtype == torch.complex64 and made.shape == (2, 3), made
            assert "no quantized" in refusal(lambda: stretto.empty(3, dtype=torch.qint8))
            values = torch.ones(2, 4, dtype=torch.complex64)
            alone, model = Wave(), fully_shard(Wave(), mesh=init_device_mesh("cpu", (size,)))
            model.set_allocate_memory_from_process_group_for_comm(True)
            for each in (alone, model):
                each(values).backward()
            assert torch.allclose(model.weight.grad.full_tensor(), alone.weight.grad)

        ranks.with_group(body)

    def test_freed_memory_is_kept(self) -> None:
        """The heap keeps as much freed memory as was registered, so that it is not paged in
        again."""

        def body(rank: int, size: int) -> int:
            import stretto

            def use(bytes_each: int) -> None:
                _ = [torch.ones(bytes_each // 4) for _ in range(5)]

            registered = stretto.empty(6 << 20)
            for _ in range(5):  # Until the heap stops growing.
                use(12 << 20)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            use(12 << 20)
            assert registered.numel() == 6 << 20
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        for pages in ranks.with_group(body):
            self.assertLess(pages * resource.getpagesize(), 12 << 20)

    def test_ddp(self) -> None:
        """DDP gives the same parameters as one process with all the data."""

        def train(model: torch.nn.Module, data: torch.Tensor, steps: int = 3) -> torch.Tensor:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        def make() -> torch.nn.Module:
            torch.manual_seed(1)
            return torch.nn.Sequential(
                torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5)
            )

        data = torch.linspace(-1, 1, 8 * 20).reshape(8, 20)
        alone = train(make(), data)

        def body(rank: int, size: int) -> float:
            for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
                gc.collect()
                before = registered_bytes()
                model = torch.nn.parallel.DistributedDataParallel(make(), **options)
                found = train(model, data[rank::size])
                assert torch.allclose(found, alone, atol=1e-6), (found - alone).abs().max()
                buckets = registered_bytes() - before
                assert buckets >= found.numel() * found.itemsize, buckets
                if "gradient_as_bucket_view" in options:  # Other ranks read the gradients in place.
                    for parameter in model.parameters():
                        assert "memfd:stretto" in mapping_of(parameter.grad)
                del model
            return float(found.sum())

        sums = ranks.with_group(body)
        self.assertEqual(sums[0], sums[1])

    def test_trains_parameters_of_all_kinds(self) -> None:
        class Mixed(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.wave = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
                self.short = torch.nn.Linear(3, 2).to(torch.bfloat16)
                self.long = torch.nn.Linear(3, 2).double()

            def forward(self, values: torch.Tensor) -> torch.Tensor:
                waves = (torch.complex(values, 0 * values) @ self.wave).abs()
                return waves + self.short(values.to(torch.bfloat16)) + self.long(values.double())

        def gradients(model: torch.nn.Module, values: torch.Tensor) -> list[torch.Tensor]:
            model(values).square().mean().backward()
            return [p.grad for p in model.parameters() if p.grad is not None]

        values = torch.linspace(-1, 1, 24).reshape(8, 3)
        alone = gradients(Mixed(), values)

        def body(rank: int, size: int) -> None:
            for views in (False, True):
                model = torch.nn.parallel.DistributedDataParallel(
                    Mixed(), gradient_as_bucket_view=views
                )
                found = gradients(model, values[rank::size])
                assert len(found) == len(alone) == 5
                for one, other in zip(found, alone):
                    assert one.dtype == other.dtype
                    assert torch.allclose(one, other, rtol=0.02, atol=0.02), (one, other)

        ranks.with_group(body)

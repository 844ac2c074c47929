# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests the results of the collectives of torch.distributed on the backend stretto."""

from __future__ import annotations

import functools
import unittest

import ranks
import torch
import torch.distributed as dist

REDUCED = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
MOVED = [*REDUCED, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


def value(rank: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 2)):
    """Returns the input of a rank: small numbers, exact in every dtype."""
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    return (torch.arange(count) % 4 + rank + 1).reshape(shape).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    bytes_of = (tensor.reshape(-1).view(torch.uint8) for tensor in (found, wanted))
    assert torch.equal(*bytes_of), (found, wanted)


def total(size: int, dtype: torch.dtype = torch.float32, **options) -> torch.Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64  # PyTorch cannot add all types.
    return functools.reduce(torch.add, [value(r, wide, **options) for r in range(size)]).to(dtype)


def reduces_all_dtypes(rank: int, size: int) -> None:
    for dtype in REDUCED:
        tensor = value(rank, dtype)
        dist.all_reduce(tensor)
        same(tensor, total(size, dtype=dtype))


def applies_every_operation(rank: int, size: int) -> None:
    everyone = torch.stack([value(r, torch.int32) for r in range(size)])
    wanted = {
        dist.ReduceOp.PRODUCT: everyone.prod(0, dtype=torch.int32),
        dist.ReduceOp.MIN: everyone.amin(0),
        dist.ReduceOp.MAX: everyone.amax(0),
        dist.ReduceOp.BAND: functools.reduce(torch.bitwise_and, everyone),
        dist.ReduceOp.BOR: functools.reduce(torch.bitwise_or, everyone),
        dist.ReduceOp.BXOR: functools.reduce(torch.bitwise_xor, everyone),
    }
    for op, result in wanted.items():
        tensor = value(rank, torch.int32)
        dist.all_reduce(tensor, op)
        same(tensor, result)
    for dtype in (torch.float64, torch.complex64):
        mean = value(rank, dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        same(mean, total(size, dtype=dtype) / size)
    for dtype in (torch.int8, torch.int32, torch.uint16, torch.uint64):
        sign = -1 if dtype.is_signed else 1
        mean = (value(rank, torch.int64) * sign).to(dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        rounded = torch.div(total(size) * sign, size, rounding_mode="trunc")  # Towards zero.
        same(mean, rounded.to(torch.int64).to(dtype))
    real = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for dtype in (*real, torch.complex64):  # PyTorch passes complex numbers as real ones.
        for factor in (0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)):
            weighted = value(rank, dtype)
            dist.all_reduce(weighted, dist._make_nccl_premul_sum(factor))
            same(weighted, total(size, dtype=dtype) * 0.5)
    half = dist._make_nccl_premul_sum(0.5)
    refused = ranks.refusal(lambda: dist.all_reduce(value(rank, torch.int32), half))
    assert "a factor needs a floating point dtype" in refused, refused
    either = torch.tensor([rank == 0, False])
    dist.all_reduce(either)
    same(either, torch.tensor([True, False]))


def moves_all_dtypes(rank: int, size: int) -> None:
    for dtype in MOVED:
        tensor = value(rank, dtype)
        dist.broadcast(tensor, src=1)
        same(tensor, value(1, dtype))
        outputs = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(outputs, value(rank, dtype))
        for r, output in enumerate(outputs):
            same(output, value(r, dtype))


def takes_any_layout(rank: int, size: int) -> None:
    """Elements are matched by their indices, whatever the strides of each rank's tensor."""
    shape = (2, 3, 4, 5)
    layouts = [
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda t: torch.cat([t, t], dim=1)[:, :3],
        lambda t: t,
    ]
    for shift in range(len(layouts)):
        tensor = layouts[(rank + shift) % len(layouts)](value(rank, shape=shape))
        strides = tensor.stride()
        dist.all_reduce(tensor)
        same(tensor, total(size, shape=shape))
        assert tensor.stride() == strides
    outputs = [torch.zeros(4, 2).t() for _ in range(size)]
    dist.all_gather(outputs, value(rank, shape=(4, 2)).t())
    for r, output in enumerate(outputs):
        same(output, value(r, shape=(4, 2)).t())
    with torch.inference_mode():  # The mode is per thread, and another thread copies the result.
        inferred = value(rank, shape=(300, 400)).t().contiguous().t()
        dist.all_reduce(inferred, async_op=True).get_future().wait()
        same(inferred, total(size, shape=(300, 400)))
    pattern = torch.ones(1).expand(3)
    refused = ranks.refusal(lambda: dist.all_reduce(pattern))
    assert "clone()" in refused, refused
    received = pattern if rank == 0 else torch.zeros(3)  # The source is only read.
    dist.broadcast(received, src=0)
    assert torch.equal(received, torch.ones(3)), received


def takes_small_and_no_elements(rank: int, size: int) -> None:
    for shape in [(), (0,), (2, 0), (1,)]:
        tensor = value(rank, shape=shape)
        dist.all_reduce(tensor)
        same(tensor, total(size, shape=shape))
        outputs = [torch.empty(shape) for _ in range(size)]
        dist.all_gather(outputs, value(rank, shape=shape))
        for r, output in enumerate(outputs):
            same(output, value(r, shape=shape))
    dist.barrier()


def gathers_and_scatters(rank: int, size: int) -> None:
    flat = torch.empty(3 * size, 2)
    dist.all_gather_into_tensor(flat, value(rank))
    same(flat, torch.cat([value(r) for r in range(size)]))
    uneven = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(uneven, value(rank, shape=(rank + 1,)))
    for r, output in enumerate(uneven):
        same(output, value(r, shape=(r + 1,)))
    for root in range(size):
        outputs = [torch.empty(3, 2) for _ in range(size)] if rank == root else None
        dist.gather(value(rank), outputs, dst=root)
        # Since PyTorch 2.14, whose wrapper of DETAIL does not pass it on.
        is_wrapped = dist.get_debug_level() == dist.DebugLevel.DETAIL
        if hasattr(dist, "gather_single") and not is_wrapped:
            whole = torch.empty(size, 3, 2) if rank == root else None
            dist.gather_single(value(rank), whole, dst=root)
            if rank == root:
                same(whole, torch.stack([value(r) for r in range(size)]))
        for r, output in enumerate(outputs or []):
            same(output, value(r))
        one = torch.empty(3, 2)
        dist.scatter(one, [value(r + 10) for r in range(size)] if rank == root else None, src=root)
        same(one, value(rank + 10))
        reduced = value(rank)
        dist.reduce(reduced, dst=root)
        same(reduced, total(size) if rank == root else value(rank))


def reduces_and_scatters(rank: int, size: int) -> None:
    output = torch.empty(3, 2)
    inputs = [value(rank + r) for r in range(size)]
    wanted = functools.reduce(torch.add, [value(r + rank) for r in range(size)])
    dist.reduce_scatter(output, inputs)
    same(output, wanted)
    for r, tensor in enumerate(inputs):
        same(tensor, value(rank + r))
    flat = torch.cat(inputs)
    output.zero_()
    dist.reduce_scatter_tensor(output, flat)
    same(output, wanted)
    same(flat, torch.cat(inputs))
    average = torch.empty(3, 2)
    dist.reduce_scatter_tensor(average, flat, dist.ReduceOp.AVG)
    same(average, wanted / size)
    uneven = torch.empty(rank + 1)
    dist.reduce_scatter(uneven, [value(rank, shape=(r + 1,)) for r in range(size)])
    same(uneven, total(size, shape=(rank + 1,)))


def exchanges(rank: int, size: int) -> None:
    output = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(size) + 10 * rank)
    same(output, torch.arange(size) * 10 + rank)
    # Rank s sends d + 1 rows to rank d.
    sent = torch.cat([value(10 * rank + d, shape=(d + 1, 2)) for d in range(size)])
    received = torch.empty((rank + 1) * size, 2)
    dist.all_to_all_single(
        received, sent, [rank + 1] * size, [d + 1 for d in range(size)]
    )
    same(received, torch.cat([value(10 * s + rank, shape=(rank + 1, 2)) for s in range(size)]))
    # Equal explicit sizes are valid too, also for types that are moved as bytes.
    for dtype in (torch.int32, torch.complex32):
        sizes = [[2] * size] * 2
        sent = (torch.arange(2 * size, dtype=torch.int32) + 10 * rank).view(dtype)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, *sizes)
        wanted = [10 * s + 2 * rank + i for s in range(size) for i in range(2)]
        same(received, torch.tensor(wanted, dtype=torch.int32).view(dtype))
    outputs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outputs, [value(10 * rank + d, shape=(d + 1,)) for d in range(size)])
    for s, tensor in enumerate(outputs):
        same(tensor, value(10 * s + rank, shape=(rank + 1,)))


def sends_and_receives(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(value(5), dst=1, tag=7)
        tensor = torch.empty(3, 2)
        senders = sorted(dist.recv(tensor, tag=3) for _ in range(size - 1))
        assert senders == list(range(1, size)), senders
    else:
        if rank == 1:
            tensor = torch.empty(3, 2)
            assert dist.recv(tensor, src=0, tag=7) == 0
            same(tensor, value(5))
        dist.isend(value(rank), dst=0, tag=3).wait()
    right, left = (rank + 1) % size, (rank - 1) % size
    incoming = torch.empty(1000)
    operations = [
        dist.P2POp(dist.irecv, incoming, left),
        dist.P2POp(dist.isend, value(rank, shape=(1000,)), right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(incoming, value(left, shape=(1000,)))
    dist.isend(torch.ones(1 << 20), dst=right)  # The message arrives without its work.
    large = torch.empty(1 << 20)
    dist.recv(large, src=left)
    same(large, torch.ones(1 << 20))


def coalesces(rank: int, size: int) -> None:
    tensors = [value(rank), value(rank, shape=(5,))]
    with dist._coalescing_manager() as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors[0], total(size))
    same(tensors[1], total(size, shape=(5,)))
    outputs = [torch.empty(3 * size, 2), torch.empty(5 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outputs[0], value(rank))
        dist.all_gather_into_tensor(outputs[1], value(rank, shape=(5,)))
    manager.wait()
    same(outputs[0], torch.cat([value(r) for r in range(size)]))
    same(outputs[1], torch.cat([value(r, shape=(5,)) for r in range(size)]))
    shares = [torch.empty(3, 2), torch.empty(5)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(shares[0], torch.cat([value(rank)] * size))
        dist.reduce_scatter_tensor(shares[1], torch.cat([value(rank, shape=(5,))] * size))
    same(shares[0], total(size))
    same(shares[1], total(size, shape=(5,)))
    gathered = [[torch.empty(1 << 19), torch.empty(4)] for _ in range(size)]
    refused = ranks.refusal(  # The second tensor is refused after the first has begun.
        lambda: dist.all_gather_coalesced(gathered, [torch.ones(1 << 19), torch.ones(5)])
    )
    assert "5 elements; it must have 4" in refused, refused
    dist.all_reduce(tensors[0])
    same(tensors[0], total(size) * size)


def reduces_sparse_tensors(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        for shape, sparse_dims in [((5, 3), 1), ((4, 3), 2), ((3, 4, 2), 2)]:
            def dense(r: int) -> torch.Tensor:
                tensor = value(r, dtype, shape)
                tensor[(r + torch.arange(shape[0])) % 3 != 0] = 0
                return tensor

            tensor = dense(rank).to_sparse(sparse_dims)
            dist.all_reduce(tensor)
            same(tensor.to_dense(), functools.reduce(torch.add, map(dense, range(size))))
    nothing = torch.zeros(4, 2).to_sparse(1)
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    other = torch.ones((4, 6) if rank == 0 else (6, 4)).to_sparse()
    for refused, why in [
        (torch.ones(2, dtype=torch.bfloat16).to_sparse(), "to_dense()"),
        (other, "[6, 4]"),  # PyTorch's wrapper also says so.
        (torch.sparse_coo_tensor([[0], [0]], [1.0], (100000, 100000)), "with one sparse dimension"),
    ]:
        told = ranks.refusal(lambda: dist.all_reduce(refused))
        assert why in told, told
    told = ranks.refusal(lambda: dist.all_reduce(nothing, dist.ReduceOp.MAX))
    assert "(this one is of Float): only SUM and AVG" in told, told


class CollectivesTest(unittest.TestCase):
    def test_worlds(self) -> None:
        """One job of each size runs all cases, because starting a job takes longer than the
        cases."""
        cases = [
            reduces_all_dtypes,
            applies_every_operation,
            moves_all_dtypes,
            takes_any_layout,
            takes_small_and_no_elements,
            gathers_and_scatters,
            reduces_and_scatters,
            exchanges,
            sends_and_receives,
            coalesces,
            reduces_sparse_tensors,
        ]

        def all_cases(rank: int, size: int) -> int:
            for case in cases:
                try:
                    case(rank, size)
                except Exception as error:
                    raise AssertionError(f"{case.__name__}, rank {rank} of {size}") from error
            return len(cases)

        def in_detail(rank: int, size: int, path: str) -> int:
            """With TORCH_DISTRIBUTED_DEBUG=DETAIL, PyTorch's wrapper compares the calls of the
            ranks."""
            dist.set_debug_level(dist.DebugLevel.DETAIL)
            ranks.start(path, rank, size)
            done = all_cases(rank, size)
            dist.destroy_process_group()
            return done

        for size in (2, 3):
            self.assertEqual(ranks.with_group(all_cases, size), [len(cases)] * size)
        self.assertEqual(ranks.run(in_detail, 2), [len(cases)] * 2)
        print(f"{len(cases)} cases, with 2 and 3 ranks")

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients that do not depend on the number of ranks; public as stretto.ReproducibleGradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    import torch.distributed as dist

_HIGH = 2.0**18  # A value is high / 2^18 + low / 2^61, with integers that are added exactly.
_LOW = 2.0**43
_LIMIT = 2.0**24
_MOST = 2**20  # Limit on the number of micro-batches.


class ReproducibleGradients:
    """Gradients that have the same bits with any number of ranks. The batch of a step is cut into
    micro-batches, always the same ones, and it does not matter which rank computes which:

        gradients = stretto.ReproducibleGradients(model.parameters())
        for step, batch in enumerate(batches):
            optimizer.zero_grad()  # Removes the gradients of the last reduce().
            for part in batch.chunk(MICRO_BATCHES)[rank::size]:
                loss_of(model, part).backward()  # Without DistributedDataParallel.
                gradients.add()
            gradients.reduce()  # .grad is the mean over all micro-batches.
            optimizer.step()

    A micro-batch has to give the same gradient on each rank. This takes the same processors, the
    same number of threads (torch.set_num_threads), no statistics of BatchNorm, no random numbers
    that depend on the rank, and equal parameters on all ranks. See docs/reproducible_training.md.
    """

    def __init__(
        self, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None
    ) -> None:
        """parameters: dense tensors of float32, float16 or bfloat16, all on one device, the same on
            all ranks.
        group: a group whose backend can add 64-bit integers on that device, by
            reduce_scatter_tensor; None: the default group.

        Collective. Raises ValueError on all ranks if a rank has different parameters, or parameters
        of another kind. The object works with this group only: after a failure, for example, a
        program that makes another group has to make another object, too.
        """
        import torch
        import torch.distributed as dist

        self._parameters = list(dict.fromkeys(parameters))
        self._group = group
        size = dist.get_world_size(group)
        self._compare(size)
        self._made: list[torch.Tensor | None] = [None] * len(self._parameters)
        count = sum(each.numel() for each in self._parameters)
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._share = -(-count // size)
        self._high, self._low = torch.zeros(
            2, size * self._share, dtype=torch.int64, device=device
        ).unbind()
        # The number of micro-batches, of values that no such integers can hold, and of gradients of
        # each parameter.
        self._added = torch.zeros(2 + len(self._parameters), dtype=torch.int64, device=device)

    def _complaint(self) -> str | None:
        """Returns what is wrong with the parameters of this rank, or None."""
        import torch

        dtypes = (torch.float32, torch.float16, torch.bfloat16)
        for index, each in enumerate(self._parameters):
            if each.layout != torch.strided or each.dtype not in dtypes:
                return f"parameter {index} is not a dense tensor of float32, float16 or bfloat16"
            if each.device != self._parameters[0].device:
                return f"parameter {index} is on another device than the first"
        return None

    def _compare(self, size: int) -> None:
        """Raises ValueError on all ranks if the parameters of one are wrong or different. A rank
        with wrong parameters takes part, because the other ranks wait for it."""
        import torch.distributed as dist

        own = [(tuple(each.shape), str(each.dtype)) for each in self._parameters]
        all_ranks: list[Any] = [None] * size
        dist.all_gather_object(all_ranks, (self._complaint(), own), group=self._group)
        for rank, (complaint, other) in enumerate(all_ranks):
            if complaint is not None:
                raise ValueError(f"rank {rank}: {complaint}")
            if other != all_ranks[0][1]:
                raise ValueError(
                    f"rank {rank} has other parameters than rank 0, or in another order"
                )

    def add(self) -> None:
        """Adds the gradients of one micro-batch, and sets them to None. A parameter without a
        gradient counts as zeros. Raises ValueError for sparse gradients, and for gradients that
        reduce() has made; then nothing has been added."""
        import torch

        for index, (each, made) in enumerate(zip(self._parameters, self._made)):
            if each.grad is not None and each.grad.layout != torch.strided:
                raise ValueError(f"the gradient of parameter {index} is sparse")
            if each.grad is not None and each.grad is made:
                raise ValueError(
                    f"the gradient of parameter {index} is that of the last reduce(), perhaps with "
                    "another one added: call zero_grad(), which sets gradients to none, before the "
                    "first backward pass of a step"
                )
        begin = 0
        for index, each in enumerate(self._parameters):
            end = begin + each.numel()
            if each.grad is not None:
                self._add(index, begin, end, each.grad.detach())
                each.grad = None
            begin = end
        self._added[0] += 1

    def _add(self, index: int, begin: int, end: int, gradient: torch.Tensor) -> None:
        value = gradient.flatten().double()
        self._added[1] += (~(value.abs() < _LIMIT)).sum()
        value = value * _HIGH
        rounded = value.round()
        self._high[begin:end] += rounded.long()
        self._low[begin:end] += ((value - rounded) * _LOW).round().long()
        self._added[2 + index] += 1

    def reduce(self) -> int:
        """Sets the gradients of the parameters to the mean over the micro-batches that all ranks
        have added since the last reduce(), and returns the number of micro-batches. A parameter for
        which no rank had a gradient gets None. All gradients are NaN if a value of any micro-batch
        is not finite or has a magnitude of 2^24 or more, or if there are more than 2^20
        micro-batches: then skip the step. Collective."""
        import torch
        import torch.distributed as dist

        group = self._group
        # The first names are those of PyTorch 2.13 and later, the second those before.
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        works = [dist.all_reduce(self._added, group=group, async_op=True)]
        sums = []
        for whole in (self._high, self._low):
            share = torch.empty_like(whole[: self._share])
            works.append(reduce_scatter(share, whole, group=group, async_op=True))
            sums.append(share)
        for work in works:
            work.wait()
        micro_batches, lacking, *used = self._added.tolist()
        high, low = (each.double() for each in sums)
        own = (high / _HIGH + low / (_HIGH * _LOW)) * (1.0 / max(micro_batches, 1))
        is_known = lacking == 0 and micro_batches <= _MOST
        own = own.float() if is_known else own.float().fill_(torch.nan)
        values = own.new_empty(self._high.shape)
        all_gather(values, own, group=group)
        begin = 0
        for index, (each, times) in enumerate(zip(self._parameters, used)):
            end = begin + each.numel()
            made = None
            if times:
                made = torch.empty_like(each, requires_grad=False)
                made.copy_(values[begin:end].view(each.shape))
            self._made[index] = each.grad = made
            begin = end
        for total in (self._high, self._low, self._added):
            total.zero_()
        return micro_batches

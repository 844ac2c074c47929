# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Started on each host: trains, and compares with one process that has all the data."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 20


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def data_of(rank: int, step: int) -> torch.Tensor:
    return torch.sin(torch.arange(8.0 * 16).reshape(8, 16) + 7 * step + 100 * rank)


def train(model: nn.Module, ranks: list[int]) -> list[float]:
    """The losses of the data of `ranks`, in steps whose gradients are those of all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.stack([model(data_of(r, step)).square().mean() for r in ranks]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("stretto")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    losses = torch.tensor(train(model, [rank]))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    alone = make_model()
    wanted = torch.tensor(train(alone, list(range(size))))
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-6)
    for found, parameter in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, parameter, rtol=1e-4, atol=1e-6)
    import stretto

    said = f"{rank} of {size}: {stretto.describe_links()}; {losses[0]:.4f} to {losses[-1]:.4f}"
    everyone: list = [None] * size
    dist.all_gather_object(everyone, said)
    # No destroy_process_group(): the end of the process is the end of the group.
    if rank == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write("\n".join(everyone))


main()

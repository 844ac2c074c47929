# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Started by torchrun: a rank is killed in the middle, and all begin again where they had saved."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS, SAVED_AT, KILLED_AT = 40, 20, 30


def train(model: nn.Module, begin: int, end: int, rank: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(begin, end):
        data = torch.cos(torch.arange(24.0).reshape(6, 4) + step + 50 * rank)
        optimizer.zero_grad()
        loss = (model(data).squeeze(1) - data.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
    total = loss.detach()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return total.item()


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.parallel.DistributedDataParallel(nn.Linear(4, 1))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("stretto")
    rank, saved = dist.get_rank(), folder / "saved.pt"
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model, begin = make_model(), 0
    if saved.exists():
        model.module.load_state_dict(torch.load(saved))
        begin = SAVED_AT
    else:
        train(model, 0, SAVED_AT, rank)
        if rank == 0:
            torch.save(model.module.state_dict(), saved)
        dist.barrier()
    if restarts == 0:
        train(model, SAVED_AT, KILLED_AT, rank)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    loss = train(model, SAVED_AT, STEPS, rank)
    undisturbed = train(make_model(), 0, STEPS, rank)
    if rank == 0:
        told = {"restarts": restarts, "began_at": begin, "loss": loss}
        told["loss_without_a_death"] = undisturbed
        (folder / "result.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main()

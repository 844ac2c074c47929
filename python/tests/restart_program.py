# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A program for torchrun: a rank is killed in the middle, and all ranks continue from their last
saved state.

Arguments: a folder, the rank that is killed, the step of the kill, and the delay within that step.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

STEPS, SAVED_EACH = 400, 50
FOLDER = pathlib.Path(sys.argv[1])
SAVED = FOLDER / "saved.pt"


def save(model: nn.Module, step: int) -> None:
    """Replaces the saved state atomically."""
    torch.save({"model": model.state_dict(), "step": step}, FOLDER / "new.pt")
    os.replace(FOLDER / "new.pt", SAVED)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    data = torch.cos(torch.arange(24.0).reshape(6, 4) + step % 10 + 50 * dist.get_rank())
    optimizer.zero_grad()
    loss = (model(data).squeeze(1) - data.sum(1)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(model: nn.Module, begin: int, victim: int = -1, is_saved: bool = False) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(begin, STEPS):
        if dist.get_rank() == victim and step == int(sys.argv[3]):
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(float(sys.argv[4]), os.kill, kill).start()
        loss = take_step(model, optimizer, step)
        if is_saved and dist.get_rank() == 0 and (step + 1) % SAVED_EACH == 0:
            save(model.module, step + 1)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.parallel.DistributedDataParallel(nn.Linear(4, 1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("stretto")
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model, begin = make_model(), 0
    if SAVED.exists():
        saved = torch.load(SAVED)
        model.module.load_state_dict(saved["model"])
        begin = saved["step"]
    loss = train(model, begin, int(sys.argv[2]) if restarts == 0 else -1, is_saved=True)
    undisturbed = train(make_model(), 0)
    if dist.get_rank() == 0:
        told = {"restarts": restarts, "began_at": begin, "loss": loss}
        told["loss_without_a_death"] = undisturbed
        (FOLDER / "result.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main()

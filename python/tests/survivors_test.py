# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that training survives the death of a rank: the others continue, or all are started
again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import tempfile
import threading
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn

STEPS = 1000
RESTARTED_STEPS = 400  # The same as in restart_program.py.
SIZE = 3


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module, member: int, step: int) -> torch.Tensor:
    """`member` is the rank at the start, so that each remaining process keeps its data."""
    data = torch.sin(torch.arange(32.0).reshape(8, 4) + 100 * member + step % 10)
    return (model(data).squeeze(1) - data.sum(1)).square().mean()


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, losses: torch.Tensor) -> None:
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()


def mean_loss(model: nn.Module, members: list[int]) -> float:
    with torch.no_grad():
        return sum(loss_of(model, m, 0).item() for m in members) / len(members)


def trained_by_one(changed_at: int, left: list[int]) -> float:
    """Returns the loss if all members take part until step `changed_at`, and then only those in
    `left`."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        members = list(range(SIZE)) if step < changed_at else left
        losses = sum(loss_of(model, m, step) for m in members) / len(members)
        take_step(model, optimizer, losses)
    return mean_loss(model, left)


def train_and_survive(member: int, victim: int, last_step: int, delay: float) -> tuple[int, float]:
    """Returns the step from which the group was smaller, and the final loss."""
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, changed_at = 0, STEPS
    while step < STEPS:
        if member == victim and step == last_step:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            take_step(model, optimizer, loss_of(model, member, step))
            step += 1
        except dist.DistBackendError as error:
            assert f"rank {victim}" in str(error), error
            dist.shrink_group([victim])
            # A rank may have finished the step that another has not, so rank 0 decides. Wrapping
            # the model again sends rank 0's parameters to all.
            agreed = torch.tensor(step)
            dist.broadcast(agreed, group_src=0)
            step = changed_at = int(agreed)
            model = nn.parallel.DistributedDataParallel(model.module)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    left = [m for m in range(SIZE) if m != victim]
    return changed_at, mean_loss(model.module, left)


class SurvivorsTest(unittest.TestCase):
    def test_training_goes_on_with_those_who_are_left(self) -> None:
        draw = ranks.random_by_seed(self.id())
        victim, last_step = draw.randrange(SIZE), draw.randrange(100, STEPS - 100)
        delay = draw.uniform(0, 0.003)
        print(f"rank {victim} is killed {delay * 1e3:.1f} ms into step {last_step}")

        def body(rank: int, size: int, path: str) -> tuple[int, float]:
            ranks.start(path, rank, size)
            result = train_and_survive(rank, victim, last_step, delay)
            dist.destroy_process_group()
            return result

        results = ranks.run(body, SIZE, deaths=1)
        self.assertIsNone(results[victim])
        left = [member for member in range(SIZE) if member != victim]
        (changed_at, loss), other = results[left[0]], results[left[1]]
        self.assertEqual((changed_at, loss)[0], other[0])
        self.assertGreaterEqual(changed_at, last_step)
        self.assertLess(changed_at, STEPS)
        wanted = trained_by_one(changed_at, left)
        self.assertAlmostEqual(loss, wanted, delta=1e-3 * wanted)
        self.assertLess(loss, 0.5 * mean_loss(make_model(), left))

    def test_a_launcher_starts_all_again(self) -> None:
        program = pathlib.Path(__file__).with_name("restart_program.py")
        draw = ranks.random_by_seed(self.id())
        victim, step = draw.randrange(SIZE), draw.randrange(100, RESTARTED_STEPS - 100)
        delay = draw.uniform(0, 0.003)
        print(f"rank {victim} is killed {delay * 1e3:.1f} ms into step {step}")
        with tempfile.TemporaryDirectory() as folder:
            command = ["-m", "torch.distributed.run", "--standalone"]
            options = [f"--nproc-per-node={SIZE}", "--max-restarts=1", "--monitor-interval=0.1"]
            death = [str(each) for each in (victim, step, delay)]
            ranks.output_of(*command, *options, program, folder, *death, timeout=200)
            told = json.loads((pathlib.Path(folder) / "result.json").read_text())
        self.assertEqual(told["restarts"], 1)
        # The last saved step; the signal may come some steps later.
        self.assertIn(told["began_at"], range(step // 50 * 50, RESTARTED_STEPS, 50))
        self.assertEqual(told["loss"], told["loss_without_a_death"])

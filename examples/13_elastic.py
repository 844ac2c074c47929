#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""13_elastic.cc for PyTorch: training that goes on when a process dies, and lets in a new one.
Kill any of the processes while it runs (kill -9 PID):

python3 -m stretto run -n 3 --restarts 10 -- python3 examples/13_elastic.py 20000

The arguments are the number of steps, the least number of processes, and a file from which a job
that has lost all of them begins again. The result is the same, but for rounding, because each
process has all data.
"""

import os
import sys
import time

import stretto
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_BETWEEN_QUESTIONS = 10
STEPS_BETWEEN_CHECKPOINTS = 50
COMPUTING_SECONDS = 0.003  # A larger model would take longer than this one.


class State:
    """All that training changes. Whoever comes gets that of rank 0."""

    def __init__(self):
        torch.manual_seed(3)
        self.network = nn.Linear(4, 2, dtype=torch.float64)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.step = 0

    def contents(self):
        return [self.step, self.network.state_dict(), self.optimizer.state_dict()]

    def become(self, contents):
        self.step = contents[0]
        self.network.load_state_dict(contents[1])
        self.optimizer.load_state_dict(contents[2])

    def save(self, path):
        torch.save(self.contents(), f"{path}.new")
        os.replace(f"{path}.new", path)  # A process that dies before leaves the old file.

    def take_step(self, model):
        """The data are others in each step, so that the parameters never come to rest."""
        numbers = torch.arange(24, dtype=torch.float64).reshape(6, 4)
        data = torch.sin(numbers + self.step % 7)
        self.optimizer.zero_grad()
        (model(data) - data[:, :2].square()).square().mean().backward()
        self.optimizer.step()  # A failure before leaves the parameters and the count as they were.
        self.step += 1


def train(job, state, steps, path=None):
    """Returns whether all steps are done; else processes wait to get in."""
    newest = state.contents()
    dist.broadcast_object_list(newest, src=0)  # From rank 0. A failure leaves `state` as it was.
    state.become(newest)
    model = DistributedDataParallel(state.network)
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"generation {job.generation}: rank {rank} of {size} goes on at step {state.step} "
          f"(pid {os.getpid()})", flush=True)  # fmt: skip
    while state.step < steps:
        if state.step % STEPS_BETWEEN_QUESTIONS == 0 and job.has_newcomers():
            return False
        time.sleep(COMPUTING_SECONDS)
        state.take_step(model)
        if path and state.step % STEPS_BETWEEN_CHECKPOINTS == 0 and rank == 0:
            state.save(path)
    return True


def main(steps, min_size=1, path=None):
    state = State()
    if path and os.path.exists(path):
        state.become(torch.load(path))
    with stretto.ElasticJob(min_size) as job:
        while job.join():  # False: the job has finished.
            try:
                if train(job, state, steps, path):
                    job.finish()
            except dist.DistBackendError as error:  # A loss, or join() raises it again.
                print(f"meeting again: {error}", file=sys.stderr, flush=True)
    weights = " ".join(f"{weight:.12f}" for weight in state.network.weight[0].tolist())
    print(f"after {state.step} steps the first weights are {weights}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])

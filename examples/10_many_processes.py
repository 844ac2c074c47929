#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""10_many_processes.cc as it is in Python; docs/coming_from_torch_nn_parallel.md maps the names.

torchrun --nproc-per-node 2 examples/10_many_processes.py data/digits.csv
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TRAIN = 1536
BATCH = 64


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.log_softmax(self.fc(x.flatten(1)), 1)


def train(path, file):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    with open(path, encoding="ascii") as lines:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    torch.manual_seed(1)
    model = DigitsNet()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(images[:TRAIN], labels[:TRAIN])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH // size, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(ddp(batch), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            own = slice(TRAIN + rank, None, size)
            correct = model(images[own]).argmax(1).eq(labels[own]).sum()
            counts = torch.stack([correct, torch.tensor(len(labels[own]))])
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {counts[0] / counts[1]:.3f}")
    if file and rank == 0:
        torch.save(ddp.module.state_dict(), file)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)

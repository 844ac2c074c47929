#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A rank of ./dev bench ddp that trains with PyTorch's own DDP over Gloo.

Takes the same orders as bench/drivers/ddp_driver.cc; of the modes it knows none,
ddp and no_sync.
"""

import argparse
import contextlib
import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddp_models


class Trainee:
    def __init__(self, name, small, device, rank, wrapped):
        self.device = device
        self.module = ddp_models.make_model(name, small).to(device)
        self.input, self.target = (part.to(device)
                                   for part in ddp_models.make_batch(name, small, rank))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)
        self.model = (DistributedDataParallel(self.module, gradient_as_bucket_view=True)
                      if wrapped else self.module)

    def step(self, set_to_none):
        self.optimizer.zero_grad(set_to_none=set_to_none)
        output = self.model(self.input)
        torch.nn.functional.cross_entropy(output, self.target).backward()
        self.optimizer.step()
        if self.device != "cpu":  # A step ends only when the device has finished its work.
            list(self.module.parameters())[-1].flatten()[0].item()

    def fingerprint(self):
        """Returns a sum that wraps around at 64 bits, so the order does not matter."""
        total = 0
        for parameter in self.module.parameters():
            bits = parameter.detach().flatten().view(torch.int32).to(torch.int64)
            places = torch.arange(1, bits.numel() + 1, device=bits.device)
            total = total * 31 + (bits * places).sum().item()
        return (total + (1 << 63)) % (1 << 64) - (1 << 63)


class Driver:
    def __init__(self, small, device, rank):
        self.small = small
        self.device = device
        self.rank = rank
        self.trainees = {}

    def trainee(self, model, wrapped):
        if (model, wrapped) not in self.trainees:
            self.trainees[(model, wrapped)] = Trainee(model, self.small, self.device, self.rank,
                                                      wrapped)
        return self.trainees[(model, wrapped)]

    def answer(self, command, model, mode, zero="none", steps="0"):
        trainee = self.trainee(model, mode != "none")
        if command == "fingerprint":
            return {"fingerprint": trainee.fingerprint()}
        guard = trainee.model.no_sync() if mode == "no_sync" else contextlib.nullcontext()
        wall, cpu = [], []
        with guard:
            for _ in range(int(steps)):
                wall_begin, cpu_begin = time.perf_counter(), time.process_time()
                trainee.step(zero == "none")
                cpu.append(1e6 * (time.process_time() - cpu_begin))
                wall.append(1e6 * (time.perf_counter() - wall_begin))
        return {"wall_us": wall, "cpu_us": cpu}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--meet", required=True, help="a folder where the ranks meet")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", help="where the models are")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(arguments.meet, "store"), arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=arguments.ranks,
                            timeout=datetime.timedelta(seconds=120))
    driver = Driver(arguments.small, arguments.device, arguments.rank)
    print(json.dumps({"version": f"torch {torch.__version__}"}), flush=True)
    for order in sys.stdin:
        print(json.dumps(driver.answer(*order.split())), flush=True)
    # Destroying the group can take Gloo a minute if a rank has already gone.
    os._exit(0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A rank of PyTorch's DistributedDataParallel, over Gloo with its own hooks or over stretto with
those of stretto.hooks: what steps take with each of them.

Rank 0 prints an object for each hook: the median of steps in seconds, and that of steps in which
nothing travels.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

LAYER = 1024  # Each layer weighs 4 MiB.
WARM_UP = 4   # PowerSGD begins in the third step.


def register_hook(hook, ddp, backend):
    name, *values = hook.split()
    if backend == "stretto" and name != "none":
        from stretto import hooks
        options = {"values": values.pop()} if len(values) > 1 else {}
        getattr(hooks, name)(*(float(value) if "." in value else int(value) for value in values),
                             **options).register(ddp)
    elif name == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif name == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(values[0]),
                                            start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def wrapped(hook, layers, backend):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(LAYER, LAYER, bias=False)
                                  for _ in range(layers)])
    # One bucket only: with several, steps of PowerSGD's hook have ended in time-outs of Gloo. Its
    # second all_reduces begin when the first ones end, perhaps not in the same order on all ranks.
    ddp = DistributedDataParallel(model, bucket_cap_mb=4 * layers + 1)
    register_hook(hook, ddp, backend)
    return ddp


def step_seconds(ddp, batch, synchronised):
    dist.barrier()
    begin = time.perf_counter()
    if synchronised:
        ddp(batch).square().mean().backward()
    else:
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
    seconds = time.perf_counter() - begin
    ddp.zero_grad(set_to_none=False)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--hooks", required=True,
                        help="by commas. gloo: none, fp16, bf16, PowerSGD N; stretto: none, or a "
                             "function of stretto.hooks and its first arguments: top_k 0.01 bf16")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "stretto"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.backend == "stretto":
        import stretto  # noqa: F401: its backend.
    dist.init_process_group(arguments.backend, init_method=f"tcp://{arguments.store}",
                            rank=arguments.rank, world_size=arguments.ranks,
                            timeout=datetime.timedelta(seconds=120))
    torch.manual_seed(2 + arguments.rank)
    batch = torch.randn(8, LAYER)
    for hook in arguments.hooks.split(","):
        ddp = wrapped(hook, arguments.layers, arguments.backend)
        steps = [step_seconds(ddp, batch, True) for _ in range(WARM_UP + arguments.steps)]
        alone = [step_seconds(ddp, batch, False) for _ in range(arguments.steps)]
        if arguments.rank == 0:
            over = arguments.backend.replace("gloo", "Gloo")
            print(json.dumps({"system": f"DDP over {over}, torch {torch.__version__}",
                              "codec": hook, "step_s": statistics.median(steps[WARM_UP:]),
                              "alone_s": statistics.median(alone)}), flush=True)
    dist.barrier()
    # Destroying the group can take Gloo a minute if a rank has already gone.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

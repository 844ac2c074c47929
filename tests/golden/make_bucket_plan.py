#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes bucket_plan.txt: what PyTorch's own bucket assignment says, for bucket_plan_test.cc.

Run with a Python that has torch: build/venv/bin/python tests/golden/make_bucket_plan.py
"""

import pathlib
import random

import torch
import torch.distributed as dist

DTYPES = {"f32": torch.float32, "f16": torch.float16, "f64": torch.float64}


def write_case(out, tensors, limits, order):
    """One case: its tensors (dtype, elements), limits and order, then the buckets (limit,
    tensors)."""
    torch_tensors = [torch.empty(count, dtype=DTYPES[dtype]) for dtype, count in tensors]
    listed = [torch_tensors[i] for i in order] if order else torch_tensors
    buckets, bucket_limits = dist._compute_bucket_assignment_by_size(
        listed, limits, [False] * len(tensors), order)
    out.write("tensors " + " ".join(f"{dtype} {count}" for dtype, count in tensors) + "\n")
    out.write("limits " + " ".join(map(str, limits)) + "\n")
    out.write("order " + " ".join(map(str, order)) + "\n")
    out.write("buckets " + " | ".join(" ".join(map(str, [limit, *bucket]))
                                      for bucket, limit in zip(buckets, bucket_limits)) + "\n")


def random_case(rng):
    # With an order PyTorch leaves unfinished buckets of several dtypes in the order of a hash
    # table, so that only one dtype gives an answer to compare with.
    ordered = rng.random() < 0.4
    dtypes = ["f32"] if ordered else list(DTYPES)
    tensors = [(rng.choice(dtypes), rng.choice([0, 1, 7, 64, 256, rng.randrange(2000)]))
               for _ in range(rng.randrange(1, 25))]
    limits = [rng.choice([1, 64, 256, 1024, 4096]) for _ in range(rng.randrange(1, 5))]
    order = rng.sample(range(len(tensors)), len(tensors)) if ordered else []
    return tensors, limits, order


def main():
    path = pathlib.Path(__file__).with_name("bucket_plan.txt")
    rng = random.Random(2026)
    with path.open("w", encoding="utf-8") as out:
        out.write(f"# Written by make_bucket_plan.py with torch {torch.__version__}.\n")
        # The first layers of ResNet-50 with DDP's defaults: real sizes, real limits.
        real = [9408, 64, 64, 4096, 64, 64, 36864, 64, 64, 16384, 256, 256] + [2359296] * 12
        write_case(out, [("f32", count) for count in real], [1 << 20, 25 << 20], [])
        for _ in range(15):
            write_case(out, *random_case(rng))


if __name__ == "__main__":
    main()

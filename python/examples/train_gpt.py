#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A small GPT learns to write like a text, byte by byte, on several processes.

    torchrun --nproc-per-node=2 python/examples/train_gpt.py --text docs/*.md --steps 300

It trains the same model once with each backend, from the same seed on the same data, and prints how
the loss fell, what the model then writes, and a table of both backends.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8
TEXTS = pathlib.Path(__file__).resolve().parents[2] / "docs"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_before, self.norm_after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.thoughts = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.heads(self.norm_before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.thoughts(self.norm_after(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1])
        return self.out(self.blocks(self.letters(text) + self.places(places)))


def train(text: torch.Tensor, steps: int) -> tuple[nn.Module, list[float], float]:
    """The model, the mean loss over all ranks at each step, and the seconds that a step takes."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(dist.get_rank())
    losses, begun = [], 0.0
    for step in range(steps):
        if step == 1:  # The first one makes connections and buckets.
            begun = time.perf_counter()
        begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)
        rows = torch.stack([text[b : b + CONTEXT + 1] for b in begins])
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    seconds = (time.perf_counter() - begun) / max(1, steps - 1)
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return model.module, (mean / dist.get_world_size()).tolist(), seconds


@torch.no_grad()
def write(model: nn.Module, begin: bytes, count: int = 120) -> str:
    text = torch.tensor([list(begin)])
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        chances = functional.softmax(model(text[:, -CONTEXT:])[:, -1] / 0.7, 1)
        text = torch.cat([text, torch.multinomial(chances, 1, generator=draw)], 1)
    return bytes(text[0].tolist()).decode(errors="replace")


def curve(losses: list[float], rows: int = 12, columns: int = 64) -> str:
    """The loss over the steps, in letters."""
    width = math.ceil(len(losses) / columns)
    means = [sum(part) / len(part) for part in
             (losses[i : i + width] for i in range(0, len(losses), width))]
    low, high = min(means), max(means)
    heights = [round((mean - low) / ((high - low) or 1) * (rows - 1)) for mean in means]
    lines = []
    for row in reversed(range(rows)):
        value = low + (high - low) * row / (rows - 1)
        lines.append(f"{value:6.2f} |" + "".join("*" if h == row else " " for h in heights))
    return "\n".join(lines) + f"\n       +{'-' * len(means)} {len(losses)} steps"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", nargs="+", type=pathlib.Path, help="files; default: docs/*.md")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--backends", default="stretto,gloo")
    parser.add_argument("--json", type=pathlib.Path, help="a file for losses and times")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = arguments.text or sorted(TEXTS.rglob("*.md"))
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)))
    results, rank, ranks = {}, 0, 0
    for backend in arguments.backends.split(","):
        dist.init_process_group(backend)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model, losses, seconds = train(text, arguments.steps)
        results[backend] = {"losses": losses, "step_ms": seconds * 1e3}
        if rank == 0 and len(results) == 1:
            print(f"{ranks} ranks, {len(text)} bytes of text, {backend}\n{curve(losses)}\n")
            print(write(model, b"The ") + "\n")
        dist.destroy_process_group()
    if rank != 0:
        return
    print(f"{'backend':<10}{'loss at first':>15}{'loss at last':>15}{'ms per step':>15}")
    for backend, result in results.items():
        losses = result["losses"]
        print(f"{backend:<10}{losses[0]:>15.4f}{losses[-1]:>15.4f}{result['step_ms']:>15.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ranks": ranks, "backends": results}))


if __name__ == "__main__":
    main()

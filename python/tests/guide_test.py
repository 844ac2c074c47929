# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that every Python block in docs/pytorch_backend.md is a program that runs with two
ranks."""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
import unittest

import ranks
import torch.distributed as dist
from process_group_test import free_port

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGE = SOURCE / "docs/pytorch_backend.md"


class GuideTest(unittest.TestCase):
    def test_blocks(self) -> None:
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks, 1):
            if "enable_reconfigure" in block and not hasattr(dist.ProcessGroup, "reconfigure"):
                continue  # It needs PyTorch 2.14.
            port = free_port()

            def body(rank: int, size: int, path: str) -> None:
                os.environ.update(
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    RANK=str(rank),
                    WORLD_SIZE=str(size),
                )
                os.chdir(pathlib.Path(path).parent)  # Both ranks write their files there.
                exec(compile(block, f"block {number} of {PAGE.name}", "exec"), {})

            ranks.run(body)
        self.assertGreaterEqual(len(blocks), 4)
        print(f"{len(blocks)} programs of {PAGE.name}")

    @ranks.thorough
    def test_example(self) -> None:
        """The GPT of the example learns the same with both backends."""
        with tempfile.TemporaryDirectory() as folder:
            answer = pathlib.Path(folder) / "answer.json"
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            program = SOURCE / "python/examples/train_gpt.py"
            ranks.output_of(*command, program, "--steps", "20", "--json", answer)
            told = json.loads(answer.read_text())["backends"]
        losses = told["stretto"]["losses"]
        self.assertLess(losses[-1], 0.8 * losses[0])
        for ours, theirs in zip(losses, told["gloo"]["losses"]):
            self.assertAlmostEqual(ours, theirs, delta=1e-3)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""`./dev bench torch` measures what it says, in a run too short to mean anything."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[1] / "commands/bench_backend.py"


class BenchTest(unittest.TestCase):
    def test_steps_of_training(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            answer = pathlib.Path(folder) / "results.json"
            chosen = ["--measure", "ddp,fsdp", "--models", "mlp", "--rounds", "1"]
            run = subprocess.run(
                [sys.executable, BENCH, *chosen, "--json", answer], capture_output=True, text=True
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            results = json.loads(answer.read_text())
        self.assertNotIn("all_reduce_us", results)
        (ddp,) = results["ddp_step_ms"]
        self.assertEqual(ddp["model"], "mlp")
        for variant in ("stretto", "gloo", "floor", "alone", "none"):
            self.assertGreater(ddp[variant], 0)
        self.assertEqual(set(results["fsdp_step_ms"][0]), {"model", "stretto", "gloo"})
        for column in ("exposed", "floor ms", "fsdp step"):
            self.assertIn(column, run.stdout)


if __name__ == "__main__":
    unittest.main()

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


def bench(*chosen: str) -> tuple[dict, subprocess.CompletedProcess]:
    """What it has found, or nothing if it has failed."""
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder) / "results.json"
        run = subprocess.run(
            [sys.executable, BENCH, *chosen, "--rounds=1", "--json", answer],
            capture_output=True, text=True,
        )
        return json.loads(answer.read_text()) if answer.exists() else {}, run


class BenchTest(unittest.TestCase):
    def test_steps_of_training(self) -> None:
        results, run = bench("--measure=ddp,fsdp", "--models=mlp")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("all_reduce_us", results)
        (ddp,) = results["ddp_step_ms"]
        self.assertEqual(ddp["model"], "mlp")
        for variant in ("stretto", "gloo", "floor", "alone", "none"):
            self.assertGreater(ddp[variant], 0)
        self.assertEqual(set(results["fsdp_step_ms"][0]), {"model", "stretto", "gloo"})
        for column in ("exposed", "floor ms", "fsdp step"):
            self.assertIn(column, run.stdout)

    def test_calls_from_python_and_from_cpp(self) -> None:
        results, run = bench("--measure=all_reduce", "--bytes=8,65536")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([row["bytes"] for row in results["all_reduce_us"]], [8, 65536])
        for row in results["all_reduce_us"]:
            self.assertGreater(row["c++"], 0)
            self.assertGreater(row["stretto"], 0)

    def test_torchrun_on_two_hosts(self) -> None:
        results, run = bench("--hosts=2", "--ranks=1", "--measure=ddp", "--models=mlp")
        if "NetworkError" in run.stderr:
            self.skipTest("cannot make network namespaces (needs root and iproute2)")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual((results["hosts"], results["ranks"]), (2, 2))
        (ddp,) = results["ddp_step_ms"]
        for backend in ("stretto", "gloo"):  # 8 MB of gradients need 67 ms each way.
            self.assertGreater(ddp[backend], 40)


if __name__ == "__main__":
    unittest.main()

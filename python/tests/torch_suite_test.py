# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs a sample of PyTorch's own distributed tests; ./dev torch-suite runs all, and on Gloo too."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import tempfile
import unittest

import ranks

SUITE = pathlib.Path(__file__).resolve().parents[1] / "commands/torch_suite.py"
SAMPLE = [
    "all_gather",
    "DistributedDataParallelCPU",
    "all_gather_complex",
    "all_reduce_coalesced_sum",
    "get_future",
    "scatter_object_list",
    "sparse_all_reduce_sum",
    "isend",
    "send_recv_any_source",
    "accumulate_gradients_no_sync",
    "monitored_barrier_gloo_rank_0_timeout",
    "batch_isend_irecv_op_list_err",
]


@unittest.skipUnless(
    importlib.util.find_spec("expecttest"), "PyTorch's tests need a package: pip install expecttest"
)
class TorchSuiteTest(unittest.TestCase):
    def test_sample(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            answer = pathlib.Path(folder) / "outcomes.json"
            only = f"^test_({'|'.join(SAMPLE)})$"
            chosen = ["--backends", "stretto", "--worlds", "2", "--only", only]
            ranks.output_of(SUITE, *chosen, "--json", answer)
            outcomes = json.loads(answer.read_text())["2"]["stretto"]
        passed = [name for name, (outcome, _) in outcomes.items() if outcome == "pass"]
        self.assertGreaterEqual(len(passed), 10, outcomes)
        print(f"{len(passed)} of PyTorch's tests")

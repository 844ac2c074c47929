# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests ./dev bench gpus on doubles of NCCL and of GPUs."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest
import unittest.mock

import gpus

BIN = pathlib.Path(os.environ["STRETTO_BUILD_DIR"]) / "bin"
DOUBLE = str(BIN / "libfake_nccl.so")
VARIABLES = {"STRETTO_CUDA_DRIVER": DOUBLE, "STRETTO_CUDA_KERNELS": DOUBLE,
             "STRETTO_NCCL_LIBRARY": DOUBLE}


def bench(*words, **variables):
    """Returns the exit status and the output."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), \
            unittest.mock.patch.dict("os.environ", VARIABLES | variables):
        status = gpus.main(["--bin", str(BIN), *words])
    return status, shown.getvalue()


class GpusTest(unittest.TestCase):
    SHORT = ("--bytes", "8,64K", "--in-flight", "1,3", "--rounds", "2")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_one_rank_is_compared_with_nccl_alone(self):
        results = self.folder / "results.jsonl"
        status, shown = bench("--ranks", "1", *self.SHORT, "--json", str(results))
        self.assertEqual(status, 0)
        self.assertRegex(shown, r"\| bytes \| NCCL alone \| stretto nccl \| stretto cuda \| call, ")
        self.assertRegex(shown, r"\n\| 64 KiB \| [\d.]+ \([\d.]+ to [\d.]+\) \|")
        self.assertRegex(shown, r"\n\| 3 \| [\d.]+ \(")
        self.assertIn("1 rank, left out two-level: it needs several hosts", shown)
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        self.assertEqual({line["system"] for line in lines},
                         {"NCCL alone", "stretto nccl", "stretto cuda"})
        # 8 bytes, 64 KiB, 4 MiB once, and 4 MiB three times at once.
        self.assertEqual(len(lines), 3 * 4)
        for line in lines:
            self.assertEqual((line["ranks"], len(line["us"]), len(line["call_us"])), (1, 2, 2))
            self.assertEqual(line["gpus"][0], "a double")

    def test_ranks_that_share_a_gpu_go_without_nccl(self):
        with unittest.mock.patch.object(gpus, "RANKS_BYTES", gpus.figures.MIB):
            status, shown = bench("--ranks", "1,2", *self.SHORT, STRETTO_DEVICE="0",
                                  STRETTO_BACKEND="nccl")
        self.assertEqual(status, 0)
        self.assertIn("2 ranks, left out nccl: ranks share a GPU, and NCCL takes one rank of each.",
                      shown)
        self.assertIn("| bytes | stretto cuda | call, stretto cuda |", shown)
        self.assertRegex(shown, r"By number of ranks[^|]*\| ranks \| NCCL alone ")
        self.assertRegex(shown, r"\n\| 2 \| - \| - \| [\d.]+ \(")

    def test_without_nccl_its_absence_is_said(self):
        status, shown = bench("--ranks", "2", *self.SHORT, STRETTO_NCCL_LIBRARY="/nowhere.so")
        self.assertEqual(status, 0)
        self.assertIn("NCCL cannot be loaded (/nowhere.so", shown)
        self.assertIn("| bytes | stretto cuda |", shown)

    def test_without_a_gpu_one_sentence_says_so(self):
        status, shown = bench(STRETTO_CUDA_DRIVER="/nowhere/libcuda.so.1")
        self.assertEqual(status, 77)
        self.assertEqual(len(shown.splitlines()), 1)
        self.assertIn("no GPU: no driver (/nowhere/libcuda.so.1", shown)

    def test_a_job_that_fails_is_quoted(self):
        status, shown = bench("--ranks", "1", STRETTO_DEVICE="9")
        self.assertEqual(status, 1)
        self.assertRegex(shown, "1 rank: .*device 9 is not one of the 8")

    def test_ratios_are_those_of_the_same_round(self):
        lines = [{"system": system, "ranks": 2, "bytes": 8, "in_flight": 1, "us": us,
                  "call_us": [1, 2, 3]}
                 for system, us in (("NCCL alone", [10, 20, 40]), ("stretto nccl", [20, 30, 44]))]
        self.assertEqual(
            gpus.table(gpus.PARTS[0], lines).splitlines()[-1],
            "| 8 B | 20 (10 to 40) | 30 (20 to 44) | 2 | 2 | 1.5 (1.1 to 2) |")

    def test_ranks_are_there_for_all_gpus(self):
        self.assertEqual(gpus.parse_arguments([], 8).ranks, [8])
        arguments = gpus.parse_arguments(["--ranks", "2,8", "--bytes", "3", "--in-flight", "5"], 8)
        self.assertEqual(gpus.points_of(arguments, 2), [(64 << 20, 1)])
        self.assertEqual(gpus.points_of(arguments, 8), [(64 << 20, 1), (4, 1), (4 << 20, 5)])
        for word in ("0", "2,x", ""):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                gpus.parse_arguments(["--ranks", word], 8)


if __name__ == "__main__":
    unittest.main()

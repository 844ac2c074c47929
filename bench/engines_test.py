# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of bench/engines.py. They are skipped without the engines, or network namespaces."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import engines

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("STRETTO_BUILD_DIR", HERE.parent / "build/release"))


class EnginesTest(unittest.TestCase):
    def expect_both(self, engine, program, plugin, title):
        if not shutil.which(program) or not (BUILD / "bin" / plugin).exists():
            self.skipTest(f"no {title}")
        run = subprocess.run([sys.executable, HERE / "engines.py", "--build", BUILD, "--engine",
                              engine, "--mib", "1", "--rounds", "1"], capture_output=True,
                             text=True, timeout=250, check=False)
        if "Operation not permitted" in run.stderr or "is not installed" in run.stderr:
            self.skipTest(f"cannot make network namespaces: {run.stderr}")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        # One MiB takes more than 8 ms on the wire, with any library.
        alone, ours = (float(words.split()[-1]) for words in run.stdout.split(" ms,")[:2])
        self.assertGreater(alone, 7, run.stdout)
        self.assertGreater(ours, 7, run.stdout)

    def test_of_ucx_the_median_counts(self):
        output = ("|    Stage     | # iterations | 50.0%ile | average | overall |  average |\n"
                  "Final:                    40   6018.092  7799.873  7899.000      512.83\n")
        self.assertAlmostEqual(engines.of_perftest(output), 6018.092e-6)

    def test_ucx_is_measured_alone_and_for_stretto(self):
        self.expect_both("ucx", "ucx_perftest", "libstretto_ucx.so", "UCX")

    def test_open_mpi_is_measured_alone_and_for_stretto(self):
        self.expect_both("mpi", "mpicxx.openmpi", "libstretto_mpi.so", "Open MPI")

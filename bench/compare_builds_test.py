# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of bench/compare_builds.py with one build as both builds, and with doubles of builds."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("STRETTO_BUILD_DIR", HERE.parent / "build/release"))


def compare(before, after, limit="inf"):
    return subprocess.run([sys.executable, HERE / "compare_builds.py", before, after, "--bytes",
                           "8,4K", "--rounds", "1", "--seconds", "0.01", "--limit", limit],
                          capture_output=True, text=True, timeout=200, check=False)


class CompareBuildsTest(unittest.TestCase):
    def build_that_says(self, lines):
        """Makes a build folder whose benchmark prints (buffers, regime, microseconds)."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "bin").mkdir()
        said = "".join(json.dumps({"operation": "all_reduce", "bytes": 8, "buffers": buffers,
                                   "regime": regime, "p50_us": p50_us}) + "\n"
                       for buffers, regime, p50_us in lines)
        program = folder / "bin" / "stretto"
        program.write_text(f"#!/bin/sh\ncat << END\n{said}END\n")
        program.chmod(0o755)
        return folder

    def test_each_line_of_a_benchmark_is_measured(self):
        run = compare(BUILD, BUILD)
        # Two sizes in two kinds of buffers; how many are compared depends on the machine's cores.
        self.assertRegex(run.stdout, r"(?m)^\d of 4 measurements of a line ")
        if re.search(r"(?m)^0 of 4", run.stdout):
            self.assertIn("no line was measured with the cores of both builds alike", run.stderr)
        else:
            self.assertEqual(run.returncode, 0, run.stderr)

    def test_to_compare_nothing_is_a_failure(self):
        before, after = (self.build_that_says([("private", cores, 2.0)])
                         for cores in ("near", "far"))
        self.assertEqual(compare(before, after).returncode, 1)

    def test_a_ratio_is_held_to_the_limit(self):
        before, after = (self.build_that_says([("private", "near", time)]) for time in (2.0, 3.0))
        run = compare(before, after, "1.6")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(" near                1      2.000      3.000  1.500   1.50 1.50\n",
                      run.stdout)
        self.assertEqual(compare(before, after, "1.4").returncode, 1)

    def test_only_lines_of_one_regime_are_compared(self):
        before = self.build_that_says([("registered", "near", 1.0), ("private", "near", 1.0),
                                       ("huge", "mixed", 1.0)])
        after = self.build_that_says([("registered", "near", 1.0), ("private", "far", 9.0),
                                      ("huge", "mixed", 9.0)])
        run = compare(before, after, "2")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual([line.split()[1] for line in run.stdout.splitlines()[1:-1]],
                         ["registered"])
        self.assertIn("1 of 3 measurements", run.stdout)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""bench/compare_builds.py, with one build as both of the two."""

import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("STRETTO_BUILD_DIR", HERE.parent / "build/release"))


class CompareBuildsTest(unittest.TestCase):
    def compare(self, limit):
        return subprocess.run([sys.executable, HERE / "compare_builds.py", BUILD, BUILD, "--bytes",
                               "8,4K", "--rounds", "1", "--seconds", "0.01", "--limit", limit],
                              capture_output=True, text=True, timeout=200, check=False)

    def test_each_line_of_the_benchmark_is_compared_and_held_to_the_limit(self):
        run = self.compare("1e9")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([line.split()[:3] for line in run.stdout.splitlines()[1:]],
                         [["all_reduce", buffers, size] for size in ("8", "4096")
                          for buffers in ("registered", "private")], run.stdout)
        self.assertEqual(self.compare("1e-9").returncode, 1)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of scripts/phases.sh: how it reads the logs of ctest; and of what ./dev says at once."""

import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

PHASES = pathlib.Path(__file__).resolve().parent / "phases.sh"

OF_GOOGLETEST = """\
[ RUN      ] Network.Drops
/src/network_test.cc:53: Skipped
cannot make network namespaces (needs root, iproute2)
[  SKIPPED ] Network.Drops (0 ms)
[  PASSED  ] 0 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Network.Drops
[ RUN      ] TwoHosts.Meet/2
/src/two_hosts_test.cc:35: Skipped
cannot make network namespaces (needs root, iproute2)
[  SKIPPED ] TwoHosts.Meet/2, where GetParam() = 2 (0 ms)
[ RUN      ] Worlds/Devices.Add/shm
/src/device_test.cc:43: Skipped
skipped: no GPU
[  SKIPPED ] Worlds/Devices.Add/shm (0 ms)
[ RUN      ] Worlds/Devices.Add/tcp
[       OK ] Worlds/Devices.Add/tcp (0 ms)
"""
OF_UNITTEST = """\
test_quotes (quotes_test.QuotesTest.test_quotes) ... ok
test_links (hosts_test.LinkTest.test_links) ... skipped "the cable isn't built"
test_reads (hosts_test.LinkTest.test_reads)
What a docstring says. ... skipped 'it takes long: ./dev test --all runs it'
Ran 3 tests in 0.100s
OK (skipped=2)
"""
OF_PYTEST = """\
=========================== short test summary info ============================
SKIPPED [3] python/tests/device_test.py:303: skipped: no GPU
================== 4 passed, 3 skipped in 0.10s ==================
"""
OF_CTEST = """\
  1/3 Test  #7: Socket ...............   Passed    0.52 sec
      Start 9: scripts.chaos_test
  2/3 Test  #8: Worlds/Devices.Add/shm ...***Skipped   0.01 sec
  3/3 Test  #9: scripts.chaos_test ...   Passed   11.30 sec
100% tests passed, 0 tests failed out of 3
"""


def call(function, log):
    """Returns the lines that the function prints for a log with this text."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(log)
        file.flush()
        script = (f"set -euo pipefail; source {shlex.quote(str(PHASES))}; "
                  f"{function} {shlex.quote(file.name)}")
        return subprocess.run(["bash", "-c", script], check=True, capture_output=True,
                              text=True).stdout.splitlines()


class PhasesTest(unittest.TestCase):
    def test_skipped_tests_are_counted_by_reasons(self):
        # A test that ran a second time, because another test of its suite had failed, counts once.
        self.assertEqual(call("show_skipped", OF_GOOGLETEST * 2 + OF_UNITTEST + OF_PYTEST), [
            "", "skipped tests, and why:",
            "     4  skipped: no GPU; in Worlds/Devices device_test",
            "     2  cannot make network namespaces (needs root, iproute2); in Network TwoHosts",
            "     1  the cable isn't built; in hosts_test",
            "     1  it takes long: ./dev test --all runs it; in hosts_test"])

    def test_where_nothing_is_skipped_nothing_is_said(self):
        self.assertEqual(call("show_skipped", OF_CTEST), [])

    def test_the_slowest_tests_come_first(self):
        self.assertEqual(call("show_slowest", OF_CTEST), [
            "", "slowest tests:", "  11.30 s  scripts.chaos_test", "  0.52 s  Socket",
            "  0.01 s  Worlds/Devices.Add/shm"])


class DevTest(unittest.TestCase):
    def test_mistakes_are_told_before_anything_is_built(self):
        with tempfile.TemporaryDirectory() as folder:  # There is nothing to build.
            shutil.copytree(PHASES.parent, pathlib.Path(folder, "scripts"))
            shutil.copy(PHASES.parent.parent / "dev", folder)
            for words, said in ((["--seedy", "1"], "'--seedy' is not an option"),
                                (["--seed"], "--seed needs a number"),
                                (["--seed", "1", "--ranks", "two"], "--ranks needs a number")):
                ended = subprocess.run([f"{folder}/dev", "sim", *words], check=False, text=True,
                                       capture_output=True, env={"STRETTO_PACKAGES": "OFF",
                                                                 "STRETTO_TORCH": "OFF",
                                                                 "PATH": "/usr/bin:/bin"})
                self.assertEqual((ended.returncode, ended.stdout, ended.stderr),
                                 (1, "", f"dev: ./dev sim: {said}\n"))


if __name__ == "__main__":
    unittest.main()

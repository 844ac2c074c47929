# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Two hosts, which are network namespaces of this machine, with a launcher each."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PROGRAM = pathlib.Path(__file__).with_name("trained_on_hosts_program.py")
LIMIT_SECONDS = 200  # On a busy machine; alone it takes some seconds.


def end(launcher: subprocess.Popen[str]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)


def launch(addresses: list[str], host: int) -> list[str]:
    words = [sys.executable, "-m", "stretto", "run", "-n", "2", "--hosts", ",".join(addresses)]
    return [*words, "--host-index", str(host), "--", sys.executable]


class HostsTest(unittest.TestCase):
    def test_training_is_that_of_one_process(self) -> None:
        """Losses and parameters; the ranks of a host share memory, and hosts have 1 Gbit/s."""
        sys.path.append(str(SCRIPTS))
        import namespaces

        network = namespaces.Network(f"ho{os.getpid() % 100000}")
        self.addCleanup(network.remove)
        try:
            network.make()
            network.shape(1e9)
        except namespaces.NetworkError as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            answer = pathlib.Path(folder) / "links"
            addresses = [network.address(host) for host in range(2)]
            launchers = [
                subprocess.Popen(
                    [*network.enter(host), *launch(addresses, host), str(PROGRAM), str(answer)],
                    stderr=subprocess.PIPE, text=True, start_new_session=True,
                    env={**os.environ, "STRETTO_JOB_KEY": "5a" * 32},
                )
                for host in range(2)
            ]
            for launcher in launchers:
                self.addCleanup(end, launcher)
            said = [launcher.communicate(timeout=LIMIT_SECONDS)[1] for launcher in launchers]
            self.assertEqual([launcher.returncode for launcher in launchers], [0, 0], said)
            lines = answer.read_text().splitlines()
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertRegex(line, r"shm to rank \d.*tcp to ranks? \d|tcp to .*shm to rank \d")

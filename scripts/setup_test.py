# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of scripts/setup.sh on machines that differ from those it is written on. Doubles of system
programs simulate such machines."""

import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

SCRIPTS = shlex.quote(str(pathlib.Path(__file__).resolve().parent))
# The setup of a user who is not root, whoever runs the test.
SOURCED = (f"set -euo pipefail; source {SCRIPTS}/phases.sh; "
           f"source <(sed 's/EUID/1000/' {SCRIPTS}/setup.sh); ")


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def program(self, name, script):
        self.file(name, f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def call(self, script):
        said = self.folder / "said"  # A pipe stays open as long as child processes live.
        with said.open("w") as output:
            status = subprocess.run(["bash", "-c", SOURCED + script], cwd=self.folder, check=False,
                                    env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
                                    stdout=output, stderr=subprocess.STDOUT).returncode
        self.assertEqual(status, 0, said.read_text())
        return said.read_text()

    def test_a_user_with_one_rule_of_sudo_that_wants_no_password_is_asked_for_none(self):
        self.program("dpkg-query", "exit 1")
        self.file("scripts/packages.txt", "build g++\n")
        self.program("sudo", 'case "$1" in -v) exit 1;; -n) shift;; esac; exec "$@"')
        self.program("apt-get", 'echo "$@" >> asked')
        self.call("ensure_packages build")
        asked = (self.folder / "asked").read_text()
        self.assertRegex(asked, r"^-o DPkg::Lock::Timeout=\d+ install .* g\+\+\n$")

    def test_the_list_of_packages_is_fetched_where_it_lacks_one(self):
        self.program("sudo", 'exec "$@"')
        self.program("apt-get", 'echo "$@" >> asked; test "$(wc -l < asked)" != 1')
        self.call("apt_install g++")
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual([line.split()[2] for line in asked], ["install", "update", "install"])

    def test_who_has_locked_the_list_of_packages_is_waited_for(self):
        self.program("sudo", 'exec "$@"')
        self.program("sleep", 'echo "$@" >> slept')
        self.program("apt-get", 'echo "$@" >> asked; test "$(wc -l < asked)" -gt 3')
        self.call("apt_install g++")
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual([line.split()[2] for line in asked],
                         ["install", "update", "update", "update", "install"])
        self.assertEqual((self.folder / "slept").read_text(), "5\n5\n")

    def test_the_list_of_packages_is_not_asked_for_without_end(self):
        self.program("sudo", 'exec "$@"')
        self.program("sleep", "")
        self.program("apt-get", 'echo "$@" >> asked; exit 1')
        self.call("! apt_install g++")
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual(len(asked), 14)

    def test_where_clang_14_is_to_be_had_is_said_where_it_is_not(self):
        self.program("sudo", 'exec "$@"')
        self.program("sleep", "")
        self.program("apt-get", "exit 1")
        self.assertEqual(self.call("! apt_install g++"), "")
        self.assertIn("as Debian 12 and", self.call("! apt_install clang-14 clang-format-14"))

    def test_a_virtual_environment_that_was_only_begun_is_made_anew(self):
        self.program("venv/bin/python", "exit 1")
        self.program("whole", 'echo "$@" >> asked')
        self.program("python3", 'echo "$@" >> asked; cp whole venv/bin/python')
        self.call("pip_install venv numpy; pip_install venv torch")
        asked = (self.folder / "asked").read_text().splitlines()
        made = [line for line in asked if "venv" in line]
        installed = [line.split()[-1] for line in asked if "pip install" in line]
        self.assertEqual(made, ["-m venv --clear venv"])
        self.assertEqual(installed, ["numpy", "torch"])

    def usable_jobs(self, **files):
        for name, text in files.items():
            self.file({"cpu": "sys/fs/cgroup/cpu.max", "memory": "sys/fs/cgroup/memory.max",
                       "free": "proc/meminfo"}[name], text)
        return int(self.call("export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1; "
                             f"usable_jobs {self.folder}"))

    def test_as_many_processes_compile_as_cores_and_memory_allow(self):
        self.program("nproc", "echo ${OMP_NUM_THREADS:-${OMP_THREAD_LIMIT:-64}}")
        self.assertEqual(self.usable_jobs(), 64)
        self.assertEqual(self.usable_jobs(free="MemTotal: 9\nMemAvailable:   41943040 kB\n"), 20)
        self.assertEqual(self.usable_jobs(cpu="max 100000\n", memory="max\n"), 20)
        self.assertEqual(self.usable_jobs(memory="17179869184\n"), 8)
        self.assertEqual(self.usable_jobs(cpu="150000 100000\n"), 2)
        self.assertEqual(self.usable_jobs(free="MemAvailable: 1000 kB\n"), 1)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Helpers for tests of several launchers: two network namespaces as hosts, and programs on them."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import namespaces


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.network = namespaces.Network(f"two{os.getpid()}")
        self.addCleanup(self.network.remove)
        try:
            self.network.make()
        except namespaces.NetworkError as error:
            self.skipTest(f"cannot make network namespaces: {error}")
        self.hosts_files = [self.network.hosts_file(host) for host in range(2)]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def publish(self, names):
        """Adds the names of both hosts to the /etc/hosts of each."""
        for path in self.hosts_files:
            with path.open("a") as file:
                file.writelines(f"{self.network.address(host)} {name}\n"
                                for host, name in enumerate(names))

    def run_process(self, words, variables):
        """Runs a process without the STRETTO_ variables of this process."""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("STRETTO_")}
        process = subprocess.Popen(words, env=environment | variables, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

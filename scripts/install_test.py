#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Installs this build, and builds and runs a program against it by find_package and pkg-config."""

import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])
CACHE = dict(line.split("=", 1) for line in (BUILD / "CMakeCache.txt").read_text().splitlines()
             if "=" in line and not line.startswith(("#", "//")))
TORCH_DIR = CACHE.get("Torch_DIR:PATH", "") if os.environ["STRETTO_HAVE_TORCH"] == "ON" else ""


def output_of(*command, **more):
    """What a command prints; its failure shows everything that it has said."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, **more)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}"
    return done.stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="stretto_install_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = cls.folder / "prefix"
        output_of("cmake", "--install", BUILD, "--prefix", cls.prefix)

    def two_ranks_of(self, program):
        tool = self.prefix / "bin/stretto"
        lines = output_of(tool, "run", "-n", "2", "--no-prefix", "--", program).splitlines()
        return sorted(lines)

    def test_find_package(self):
        built = self.folder / "built"
        output_of("cmake", "-S", SOURCE / "tests/install", "-B", built, "-G", "Ninja",
                  f"-DCMAKE_PREFIX_PATH={self.prefix}",
                  f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER:FILEPATH']}",
                  f"-DWITH_TORCH={'ON' if TORCH_DIR else 'OFF'}", f"-DTorch_DIR={TORCH_DIR}")
        output_of("cmake", "--build", built)
        self.assertEqual(self.two_ranks_of(built / "consumer"),
                         ["rank 0: the sum is 1", "rank 1: the sum is 1"])
        if TORCH_DIR:
            self.assertEqual(self.two_ranks_of(built / "torch_consumer"),
                             ["rank 0: the gradient is 0.5", "rank 1: the gradient is 0.5"])

    def test_pkg_config(self):
        found = [path.parent for path in self.prefix.rglob("stretto.pc")]
        self.assertEqual(len(found), 1)
        path = f"{found[0]}:{os.environ.get('PKG_CONFIG_PATH', '')}"
        flags = output_of("pkg-config", "--cflags", "--libs", "stretto",
                          env={**os.environ, "PKG_CONFIG_PATH": path})
        program = self.folder / "consumer"
        output_of(CACHE["CMAKE_CXX_COMPILER:FILEPATH"], "-std=c++20",
                  SOURCE / "tests/install/consumer.cc", "-o", program, *shlex.split(flags))
        self.assertEqual(self.two_ranks_of(program),
                         ["rank 0: the sum is 1", "rank 1: the sum is 1"])


if __name__ == "__main__":
    unittest.main()

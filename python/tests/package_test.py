# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What a wheel would hold works from where it is put, and shows no symbol but Python's way in."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])

PROGRAM = """
import torch, torch.distributed as dist
assert "stretto" in dist.Backend.backend_list
import sys
assert "stretto._c" not in sys.modules
dist.init_process_group("stretto", store=dist.HashStore(), rank=0, world_size=1)
one = torch.ones(2)
dist.all_reduce(one)
import stretto
print("works,", stretto.__version__, stretto.__file__)
"""


LOADING = """
import time
begun = time.perf_counter()
import torch, torch.distributed
loaded = time.perf_counter()
import stretto
stretto._module()
print((time.perf_counter() - loaded) / (loaded - begun))
"""


class PackageTest(unittest.TestCase):
    def test_loads_quickly(self) -> None:
        """Beside torch, whatever the machine does besides."""
        run = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertLess(float(run.stdout), 0.2)

    def test_says_where_the_program_is_not(self) -> None:
        for place, why in (("/", "Permission denied"), ("/nowhere", "No such file")):
            run = subprocess.run(
                [sys.executable, "-m", "stretto"],
                env={**os.environ, "STRETTO_PROGRAM": place},
                capture_output=True,
                text=True,
            )
            self.assertRegex(run.stderr, f"^stretto: {place}: {why}.*STRETTO_PROGRAM")
            self.assertEqual(run.returncode, 1)

    def test_installed_files(self) -> None:
        with tempfile.TemporaryDirectory() as site:
            subprocess.run(
                ["cmake", "--install", BUILD, "--component", "wheel", "--prefix", site],
                check=True,
                capture_output=True,
            )
            package = pathlib.Path(site) / "stretto"
            shutil.copytree(SOURCE / "python/stretto", package, dirs_exist_ok=True)
            for metadata in (BUILD / "python").glob("*.dist-info"):
                shutil.copytree(metadata, pathlib.Path(site) / metadata.name)
            environment = {**os.environ, "PYTHONPATH": site}
            environment.pop("STRETTO_PROGRAM")
            run = subprocess.run(
                [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn(f"works, 0.1.0 {package}", run.stdout)
            tool = subprocess.run(
                [sys.executable, "-m", "stretto", "--help"],
                env=environment,
                capture_output=True,
                text=True,
            )
            self.assertIn("bench", tool.stdout, tool.stderr)
            module = next(package.glob("_c.*.so"))
            shown = subprocess.run(
                ["nm", "-D", "--defined-only", "--format=posix", module],
                check=True,
                capture_output=True,
                text=True,
            )
            names = [line.split()[0] for line in shown.stdout.splitlines()]
            self.assertEqual(names, ["PyInit__c"])
            print("1 module, 1 symbol, 1 program")


if __name__ == "__main__":
    unittest.main()

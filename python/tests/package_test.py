# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that the files of a wheel work where they are installed, and that the module exports only
Python's entry point."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv

import ranks

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


# A project that pip builds instead of this one, because this one is already built.
BUILT = """
cmake_minimum_required(VERSION 3.25)
project(built LANGUAGES NONE)
add_custom_target(stretto_python)
add_custom_target(stretto_tool)
install(CODE "execute_process(COMMAND ${CMAKE_COMMAND} --install @BUILD@ --component wheel
  --prefix \\${CMAKE_INSTALL_PREFIX} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT wheel)
"""


class PackageTest(unittest.TestCase):
    def test_loads_quickly(self) -> None:
        """The machine may be busy, so one success in five attempts is enough."""
        program = pathlib.Path(__file__).with_name("loading_program.py")
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        taken: list[float] = []
        while len(taken) < 5 and min(taken, default=1e9) > 100:
            taken.append(float(ranks.output_of(program, env=environment)))
        self.assertLess(min(taken), 100, f"milliseconds beyond torch: {taken}")

    @unittest.skipUnless(
        importlib.util.find_spec("scikit_build_core"),
        "a wheel needs a package: pip install scikit-build-core",
    )
    def test_a_wheel(self) -> None:
        """pip makes a working wheel of pyproject.toml and the existing build."""
        with tempfile.TemporaryDirectory() as folder:
            project = pathlib.Path(folder) / "project"
            project.mkdir()
            (project / "CMakeLists.txt").write_text(BUILT.replace("@BUILD@", str(BUILD)))
            chosen = [f"cmake.source-dir={project}", f"build-dir={folder}/build"]
            pip = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
            pip += [f"--wheel-dir={folder}", *(f"--config-settings={each}" for each in chosen)]
            ranks.output_of(*pip, SOURCE)
            (wheel,) = pathlib.Path(folder).glob("stretto-*.whl")
            self.assertRegex(wheel.name, r"^stretto-0\.1\.0-cp3\d+-cp3\d+-linux_")
            ranks.output_of(SOURCE / "python/commands/try_wheel.py", wheel)

    @ranks.thorough
    def test_is_configured_for_the_torch_beside_pip(self) -> None:
        """The torch is that of one environment, and then of another in the same build folder. The
        package file of a torch with CUDA would end the configuration where there is no CUDA
        toolkit."""
        installed = pathlib.Path(importlib.util.find_spec("torch").origin).parent
        part = "share/cmake/Torch"
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one", "other"):
                environment = pathlib.Path(folder) / name
                venv.create(environment, symlinks=True)
                torch = next(environment.glob("lib/python3*/site-packages")) / "torch"
                (torch / part).mkdir(parents=True)
                for linked in ("__init__.py", "include", "lib", f"{part}/TorchConfigVersion.cmake"):
                    (torch / linked).symlink_to(installed / linked)
                (torch / part / "TorchConfig.cmake").write_text('message(FATAL_ERROR "no CUDA")')
                chosen = ["-DSTRETTO_TORCH=ON", "-DSTRETTO_TESTS=OFF", "-DSKBUILD=2"]
                chosen += [f"-DPython_EXECUTABLE={environment}/bin/python"]
                run = subprocess.run(
                    ["cmake", "-S", SOURCE, "-B", f"{folder}/build", "-G", "Ninja", *chosen],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertRegex(run.stdout, rf"torch: 2\..* in {torch}")
                rules = (pathlib.Path(folder) / "build/build.ninja").read_text()
                self.assertIn(f"{torch}/lib/libtorch_python.so", rules)

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
            said = ranks.output_of("-c", PROGRAM, env=environment)
            self.assertIn(f"works, 0.1.0 {package}", said)
            self.assertIn("bench", ranks.output_of("-m", "stretto", "--help", env=environment))
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

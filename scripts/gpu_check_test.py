# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of how gpu_check.py reports missing programs, failures and hangs, and of the nvcc that
./dev passes to CMake."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import gpu_check

# A double of the driver with one GPU and only the functions that are called.
DRIVER = """
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGetName(char* name, int room, int number) { name[0] = 'X'; name[1] = 0;
                                                        return room + number < 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int number) { *bytes = 24ul << 30; return number; }
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, *lines):
        path = self.folder / name
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(0o755)

    def driver(self):
        library = self.folder / "driver.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=DRIVER,
                       text=True, check=True)
        return str(library)

    def check(self, *arguments, driver=None):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            status = gpu_check.main(["--bin", str(self.folder), *arguments],
                                    driver or self.driver())
        return status, shown.getvalue()

    def programs(self):
        self.program("stretto_cuda_device_test", "echo '{\"what\": \"copy\", \"gb_per_s\": 1}'")
        self.program("nccl_test")
        self.program("gpu_rank_program")
        self.program("stretto", "echo '[1] {\"check\": \"f16\", \"ranks\": 2}'")

    def test_without_a_gpu_one_sentence_says_so(self):
        status, shown = self.check(driver="/nowhere/libcuda.so.1")
        self.assertEqual(status, 77)
        self.assertEqual(len(shown.splitlines()), 1)
        self.assertIn("no GPU: no driver (/nowhere/libcuda.so.1", shown)

    def test_all_programs_that_parts_need_are_built(self):
        kept = []
        keeping = unittest.mock.patch.object(
            gpu_check, "run_all", side_effect=lambda parts, _: kept.extend(parts) or [])
        torch = unittest.mock.patch.object(gpu_check, "torch_folder", return_value="/torch")
        headers = unittest.mock.patch.object(gpu_check, "has_headers_of_python", return_value=True)
        with keeping, torch, headers, contextlib.redirect_stdout(io.StringIO()):
            gpu_check.main(["--build", str(self.folder / "build")], self.driver())
        built = {str(word) for part in kept if "--target" in part.command for word in part.command}
        needed = {pathlib.Path(need).name for part in kept for need in part.needs
                  if str(need).startswith(str(self.folder))}
        self.assertGreater(len(needed), 5)
        names = {"stretto": "stretto_tool"}
        for name in needed:
            target = "stretto_python" if name.startswith("_c.") else names.get(name, name)
            self.assertIn(target, built)

    def test_ranks_on_one_gpu_are_told_which(self):
        parts = [part for part in gpu_check.training_parts(self.folder, 24 << 30)
                 if "on one GPU" in part.name or part.environment.get("STRETTO_BACKEND") == "cuda"]
        self.assertEqual(len(parts), 6)
        for part in parts:
            self.assertEqual(part.environment.get("STRETTO_DEVICE"), "0", part.name)

    def test_buffers_of_all_ranks_fit_on_a_gpu_and_make_more_than_it_has(self):
        for gib in (8, 24, 80, 141):
            for ranks in (2, 4):
                of_all = ranks * gpu_check.buffer_bytes(gib << 30, ranks)
                self.assertLess(of_all, 0.65 * (gib << 30), (gib, ranks))
                self.assertGreater(8 * of_all, gib << 30, (gib, ranks))  # One after the other.
        self.assertEqual(gpu_check.buffer_bytes(141 << 30, 4), 12 << 30)
        self.programs()
        self.program("stretto", 'case "$*" in *"cuda 1024 "*) echo "{\\"bytes\\": ${8}}";; esac')
        status, shown = self.check()
        self.assertEqual(status, 0, shown)
        for ranks in (2, 4):
            self.assertIn(f"bytes {gpu_check.buffer_bytes(24 << 30, ranks)}", shown)

    def dev(self, *arguments, **variables):
        """Runs a copy of ./dev that finds the programs of this test's folder first; returns its
        exit status and its output."""
        shutil.copytree(gpu_check.SOURCE / "scripts", self.folder / "scripts", dirs_exist_ok=True)
        shutil.copy(gpu_check.SOURCE / "dev", self.folder)
        environment = {name: value for name, value in os.environ.items()
                       if name != "Torch_DIR" and not name.startswith("STRETTO_")}
        environment |= {"PATH": f"{self.folder}:{os.environ['PATH']}"} | variables
        said = self.folder / "said"  # A pipe stays open as long as child processes of ./dev live.
        with said.open("w") as output:
            status = subprocess.run([self.folder / "dev", *arguments], env=environment, check=False,
                                    stdout=output, stderr=subprocess.STDOUT).returncode
        return status, said.read_text()

    def test_dev_builds_with_the_nvcc_that_is_there(self):
        self.program("nvcc")
        for name in ("cmake", "python3"):  # These doubles print their arguments and do nothing.
            self.program(name, 'echo "$@"')
        for command, log, before in (("build", "configure-release", "-D"),
                                     ("wheel", "wheel", "--config-settings=cmake.define.")):
            self.dev(command, STRETTO_PACKAGES="OFF", STRETTO_NVCC=str(self.folder / "nvcc"))
            self.assertIn(f"{before}STRETTO_NVCC={self.folder}/nvcc",
                          (self.folder / f"build/logs/{log}.log").read_text())

    def test_dev_installs_the_compiler_before_the_nvcc_that_needs_it(self):
        installed = self.folder / "installed"
        self.program("dpkg-query", f"test -e {installed} && echo installed")
        self.program("apt-get", f"touch {installed}")
        self.program("sudo", '[ "$1" = -v ] || "$@"')
        self.program("gcc", f"test -e {installed}")
        self.program("nvcc", "exec gcc")
        (self.folder / "build/venv/bin").mkdir(parents=True)
        self.program("build/venv/bin/python")  # With its pip, ./dev would install the same nvcc.
        status, said = self.dev("setup", "--with-cuda", "--without-torch")
        self.assertEqual(status, 0, said)
        self.assertIn(f"STRETTO_NVCC={self.folder}/nvcc", said)
        self.assertIn("ready: ", said)

    def test_results_are_written(self):
        self.programs()
        status, shown = self.check("--json", str(self.folder / "out.json"))
        self.assertEqual(status, 0, shown)
        out = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(out["gpus"], ["X"])
        parts = {part["name"]: part for part in out["parts"]}
        self.assertEqual(parts["kernels and streams"]["facts"], [{"what": "copy", "gb_per_s": 1}])
        self.assertEqual(parts["training, 2 ranks on one GPU"]["facts"],
                         [{"check": "f16", "ranks": 2}])
        self.assertIn("check f16, ranks 2", shown)

    def test_what_fails_is_shown_and_the_rest_still_runs(self):
        self.programs()
        self.program("nccl_test", "echo no such function", "exit 3")
        status, shown = self.check()
        self.assertEqual(status, 1)
        self.assertIn("no such function", shown)
        self.assertRegex(shown, "training, 4 ranks on one GPU *passed")

    def beside_nccl(self, with_stretto_us):
        """Judges stretto's time where NCCL alone takes 20 us."""
        def line(system, us):
            return json.dumps({"system": system, "ranks": 1, "bytes": 8, "in_flight": 1, "us": [us],
                               "call_us": [2]})
        self.programs()
        self.program("gpu_driver")
        self.program("stretto", "case $* in *gpu_driver*)", f"echo '{line('NCCL alone', 20)}'",
                     f"echo '{line('stretto nccl', with_stretto_us)}'", ";; esac")
        with unittest.mock.patch.dict("os.environ", STRETTO_CUDA_DRIVER=self.driver()):
            return self.check()

    def test_what_stretto_adds_to_nccl_is_shown(self):
        status, shown = self.beside_nccl(60)
        self.assertEqual(status, 0, shown)
        self.assertIn("system stretto nccl, ranks 1, bytes 8, in_flight 1, us [60]", shown)

    def test_too_much_added_to_nccl_fails(self):
        status, shown = self.beside_nccl(90)
        self.assertEqual(status, 1)
        self.assertRegex(shown, "all_reduce against NCCL alone *failed")
        self.assertIn("1 ranks, 8 bytes: stretto adds 70 us to NCCL's all_reduce", shown)

    def test_nccl_that_was_not_measured_fails(self):
        facts = [{"system": "stretto cuda", "ranks": 1, "bytes": 8, "in_flight": 1, "us": [9]}]
        self.assertIn("not measured", gpu_check.slowness_beside_nccl(facts))
        self.assertIn("nothing was measured", gpu_check.slowness_beside_nccl([]))

    def test_a_test_that_skips_itself_has_failed(self):
        self.programs()
        self.program("stretto_cuda_device_test", "echo '[  SKIPPED ] OnDevice.All (0 ms)'")
        status, shown = self.check()
        self.assertEqual(status, 1)
        self.assertRegex(shown, "kernels and streams *failed")

    def test_what_is_not_there_is_left_out(self):
        self.programs()
        (self.folder / "gpu_rank_program").unlink()
        status, shown = self.check()
        self.assertEqual(status, 0)
        self.assertIn("gpu_rank_program", shown)
        self.assertRegex(shown, "training, 4 ranks on one GPU *left out")

    def test_what_hangs_is_ended_with_all_that_it_has_started(self):
        self.programs()
        left = self.folder / "left"
        self.program("stretto_cuda_device_test", f"(sleep 4; touch {left}) & sleep 100")
        begin = time.monotonic()
        status, shown = self.check("--seconds", "2")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(status, 1)
        self.assertRegex(shown, "kernels and streams *timed out")
        self.assertIn("there was no time left for it", shown)
        time.sleep(3)
        self.assertFalse(left.exists())

    def test_packages_are_unpacked_where_programs_look(self):
        content = self.folder / "tree" / "usr" / "include" / "here.h"
        control = self.folder / "tree" / "DEBIAN" / "control"
        for path in (content, control):
            path.parent.mkdir(parents=True)
        content.touch()
        control.write_text("Package: here\nVersion: 1\nArchitecture: all\nMaintainer: none\n"
                           "Description: none\n")
        packages = self.folder / "packages"
        packages.mkdir()
        subprocess.run(["dpkg-deb", "--build", self.folder / "tree", packages / "here.deb"],
                       check=True, capture_output=True)
        with unittest.mock.patch.dict("os.environ", CMAKE_PREFIX_PATH="/other"):
            gpu_check.unpack(packages, self.folder / "new" / "build")
            first, other = os.environ["CMAKE_PREFIX_PATH"].split(":")
        self.assertEqual(other, "/other")
        self.assertTrue((pathlib.Path(first) / "include" / "here.h").exists())

    def test_it_is_a_program(self):
        script = pathlib.Path(gpu_check.__file__)
        result = subprocess.run([sys.executable, script, "--unknown"], capture_output=True,
                                check=False)
        self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    unittest.main()

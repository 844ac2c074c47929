# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Installs this build, checks the installed files, and builds and runs programs against them: with
find_package against the static and the shared library, and with pkg-config."""

import os
import pathlib
import re
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
    """Returns the output of a command; if the command fails, the error shows all of its output."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, **more)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}"
    return done.stdout


SUM = ["rank 0: root 2 is refused, the sum is 1", "rank 1: root 2 is refused, the sum is 1"]


def declared_functions(header):
    """Returns the functions that a header declares outside of classes and does not define."""
    text = re.sub(r"//[^\n]*", "", header.read_text())
    for start in re.finditer(r"^(?!inline|constexpr|using)[a-zA-Z][\w:<>,&* ]*[ &*](\w+)\(", text,
                             re.MULTILINE):
        if text[re.compile(r"[;{] *\n").search(text, start.end()).start()] == ";":
            yield start[1]


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

    def test_what_is_installed_finds_its_libraries(self):
        for path in [self.prefix / "bin/stretto", *self.prefix.rglob("*.so")]:
            with self.subTest(path=path):
                self.assertNotIn("not found", output_of("ldd", path))

    def test_find_package(self):
        built = self.folder / "built"
        # PyTorch's own package file fails if PyTorch was built with CUDA and no CUDA toolkit is
        # there.
        output_of("cmake", "-S", SOURCE / "tests/install", "-B", built, "-G", "Ninja",
                  "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON",
                  f"-DCMAKE_PREFIX_PATH={self.prefix}",
                  f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER:FILEPATH']}",
                  f"-DWITH_TORCH={'ON' if TORCH_DIR else 'OFF'}", f"-DTorch_DIR={TORCH_DIR}")
        output_of("cmake", "--build", built)
        self.assertEqual(self.two_ranks_of(built / "consumer"), SUM)
        self.assertEqual(self.two_ranks_of(built / "shared_consumer"), SUM)
        self.assertIn("libstretto.so", output_of("ldd", built / "shared_consumer"))
        self.assertNotIn("libstretto.so", output_of("ldd", built / "consumer"))
        self.assertIn("PowerSGD rank 2", output_of(built / "example", "hooks"))
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
        self.assertEqual(self.two_ranks_of(program), SUM)

    def test_public_headers_are_installed_and_no_others(self):
        installed = self.prefix / "include"
        self.assertEqual({path.relative_to(installed) for path in installed.rglob("*.h")},
                         {path.relative_to(SOURCE / "include")
                          for path in (SOURCE / "include").rglob("*.h")})
        self.assertTrue((installed / "stretto/stretto.h").is_file())
        self.assertFalse((installed / "stretto/transport/transport.h").exists())

    def test_shared_library_shows_the_public_headers_and_no_more(self):
        library = next(self.prefix.rglob("libstretto.so"))
        shown = [line.split(" ", 2)[2]
                 for line in output_of("nm", "-DC", "--defined-only", library).splitlines()]
        for header in (SOURCE / "include").rglob("*.h"):
            if "torch" in header.relative_to(SOURCE / "include").parts:
                continue  # It needs the static library.
            for name in declared_functions(header):
                with self.subTest(header=header.name, function=name):
                    self.assertTrue(any(re.search(rf"::{name}[(<[]", symbol) for symbol in shown))
        private = [symbol for symbol in shown if re.match(r"stretto::(transport|kernel|group)::",
                                                          symbol)]
        self.assertEqual(private, [])
        self.assertLess(len(shown), 2000)

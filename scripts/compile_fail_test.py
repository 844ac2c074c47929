# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""tests/compile_fail/wrong.cc compiles unchanged. With each of its test names defined, the compiler
reports an error inside the block of that name, which matches the first line of the block."""

import re
import subprocess
import unittest

import install_test

WRONG = install_test.SOURCE / "tests/compile_fail/wrong.cc"
COMPILER = install_test.CACHE["CMAKE_CXX_COMPILER:FILEPATH"]


def compiled(*names):
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    # Without this option g++ does not say which part of a concept fails, and clang not all errors.
    more = "-ferror-limit=0" if "clang" in version.stdout else "-fconcepts-diagnostics-depth=5"
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror=unused-result", more]
    return subprocess.run(
        [COMPILER, *flags, f"-I{install_test.SOURCE / 'include'}",
         *(f"-D{name}" for name in names), WRONG],
        capture_output=True, text=True, check=False)


class CompileFailTest(unittest.TestCase):
    def test_what_is_right_compiles(self):
        done = compiled()
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_wrong_is_complained_about(self):
        expected, block_of, name = {}, {}, None
        for number, line in enumerate(WRONG.read_text().splitlines(), start=1):
            begin = re.match(r"#ifdef (\w+)  // (.*)", line)
            if begin:
                name, expected[begin[1]] = begin[1], begin[2].split(" & ")
            block_of[number] = name
            if line == "#endif":
                name = None
        done = compiled(*expected)
        said = dict.fromkeys(expected, "")
        for part in re.split(rf"(?m)^(?={re.escape(str(WRONG))}:\d+:\d+: error: )",
                             done.stderr)[1:]:
            number = int(re.match(r"\d+", part[len(str(WRONG)) + 1:])[0])
            self.assertIn(block_of[number], said, part)
            said[block_of[number]] += part
        for name, patterns in expected.items():
            for pattern in patterns:
                with self.subTest(name=name):
                    self.assertRegex(said[name], pattern)

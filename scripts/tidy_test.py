# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of scripts/tidy.py: every rule finds its violations, and does not report similar correct
code."""

import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

import changes
import clang_tidy
import header_check
import source_text
import tidy

HEAD = "// Copyright the stretto authors.\n// SPDX-License-Identifier: Apache-2.0\n\n"
THREADS = HEAD + "#include <thread>\n"
LAYERS = {"base": [], "kernel": ["base"], "torch": ["base"]}


class CodeOnlyTest(unittest.TestCase):
    def test_keeps_length_and_lines(self):
        text = ('int a; // b {\nchar c = \'{\'; /* {\n { */ auto d = "}\\"{";'
                'auto e = R"x(})" {)x";')
        code = source_text.code_only(text)
        self.assertEqual(len(code), len(text))
        self.assertEqual(code.count("\n"), text.count("\n"))
        self.assertNotIn("{", code)
        self.assertNotIn("}", code)

    def test_digit_separators_start_no_character(self):
        code = source_text.code_only("int a = 1'000'000; f('}'); int b = 0x1'FFp+3;")
        self.assertIn("1'000'000", code)
        self.assertNotIn("}", code)
        self.assertIn("int b", code)

    def test_a_comment_in_a_string_is_none(self):
        self.assertIn("after", source_text.code_only('f("//"); after("/*"); after();'))


class FunctionsTest(unittest.TestCase):
    def test_bash(self):
        text = "f() {\n  if true; then\n    g { }\n  fi\n}\nh() { one; }\n"
        self.assertEqual([(f.name, f.lines) for f in source_text.bash_functions(text)], [("f", 5)])

    def test_python(self):
        text = "class A:\n  def f(self):\n    x = '''\n\n'''\n    return x\n"
        self.assertEqual([(f.name, f.lines) for f in source_text.python_functions(text)],
                         [("f", 5)])


class RulesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def source(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(text.encode() if isinstance(text, str) else text)
        return tidy.Source(self.root, path)

    def findings(self, path, text, layers=None):
        source = self.source(path, text)
        layers = LAYERS if layers is None else layers
        return [finding.text for finding in tidy.check_sources([source], layers)]

    def assert_clean(self, path, text):
        self.assertEqual(self.findings(path, text), [])

    def assert_finds(self, path, text, part):
        findings = self.findings(path, text)
        self.assertEqual(len(findings), 1, findings)
        self.assertIn(part, findings[0])

    def test_a_good_file_is_clean(self):
        self.assert_clean("stretto/base/a.h", HEAD + "#pragma once\n\nint f();\n")

    def test_what_the_common_header_has_is_included(self):
        text = HEAD + '#include "stretto/base/b.h"\n\nauto a = fmt::join(list(), " ");\n'
        self.assert_finds("stretto/base/a.cc", text, "needs #include <fmt/ranges.h>")
        self.assert_clean("stretto/base/a.cc", text.replace('"stretto/base/b.h"', "<fmt/ranges.h>"))
        header = self.source("stretto/base/b.h", HEAD + "#pragma once\n#include <fmt/ranges.h>\n")
        source = self.source("stretto/base/a.cc", text)
        self.assertEqual(list(tidy.check_common_headers([source, header])), [])

    def test_head_and_pragma(self):
        self.assert_finds("stretto/base/a.cc", "int a;\n", "SPDX")
        self.assert_finds("stretto/base/a.h", HEAD + "int a;\n", "#pragma once")
        self.assert_finds("stretto/base/a.cuh", HEAD + "int a;\n", "#pragma once")
        self.assert_clean("stretto/kernel/a-inl.h", HEAD + "int a;\n")
        self.assert_clean("scripts/a.sh", HEAD.replace("//", "#"))

    def test_lines(self):
        self.assert_finds("stretto/base/a.cc", HEAD + "int a; \n", "space at the end")
        self.assert_finds("stretto/base/a.cc", HEAD + "// " + "a" * 98 + "\n", "101 columns")
        self.assert_finds("stretto/base/a.cc", HEAD + "int a;", "no line break")
        self.assert_finds("stretto/base/a.cc", HEAD + "// TO" "DO: more\n", "finish it")
        self.assert_clean("stretto/base/a.cc", HEAD + 'auto a = "/tmp/XX' 'XXXX";\n')
        self.assert_clean("README.md", "a" * 200 + "\n")

    def test_sizes(self):
        line = "int a;\n"
        self.assert_clean("stretto/base/a.cc", HEAD + line * 497)
        self.assert_finds("stretto/base/a.cc", HEAD + line * 498, "501 lines; at most 500")
        self.assert_finds("stretto/base/a.h", HEAD + "#pragma once\n" + line * 298, "at most 300")
        head = HEAD.replace("//", "#")
        self.assert_clean("scripts/a.sh", head + "f() {\n" + line * 58 + "}\n")
        self.assert_finds("scripts/a.sh", head + "f() {\n" + line * 59 + "}\n", "f has 61 lines")
        self.assert_finds("data/large.bin", b"\0" * (512 * 1024 + 1), "at most 524288")

    def test_forbidden_calls_name_their_replacement(self):
        for call, instead in [
            ("std::exit(1);", "return a Status"), ("abort();", "return a Status"),
            ("if (a) ::_exit(2);", "return a Status"), ("std::terminate();", "return a Status"),
            ('std::printf("a");', "use log()"), ("std::cerr << 1;", "use log()"),
            ("std::thread t(f);", "threads belong"), ("int a = std::rand();", "use Random"),
            ("assert(a);", "STRETTO_CHECK"), ("#ifdef HAVE_MPI", "own folder"),
            ("using namespace std;", "name what you use"),
        ]:
            with self.subTest(call):
                self.assert_finds("stretto/kernel/a.cc", THREADS + call + "\n", instead)
        get = 'const char* a = std::getenv("A");\n'
        self.assert_finds("stretto/kernel/a.cc", HEAD + get, "take an Environment")
        self.assert_clean("stretto/base/a.cc", HEAD + get)

    def test_what_only_looks_forbidden_is_allowed(self):
        for line in [
            "void abort(const Status& reason);", "group->abort(status);", "int exit_code(int a);",
            "// abort();", 'log("exit(1)");', "static_assert(sizeof(int) == 4);",
            "std::this_thread::yield();", "std::thread::id owner_;", "std::snprintf(a, 4, b);",
            "bool operand(int a);",
        ]:
            with self.subTest(line):
                self.assert_clean("stretto/kernel/a.cc", THREADS + line + "\n")
        for path in ["stretto/kernel/a_test.cc", "tests/faults/a.cc", "tools/a.cc"]:
            self.assert_clean(path, THREADS + "std::abort();\nstd::exit(1);\nstd::thread t(f);\n")

    def test_layers(self):
        below = HEAD + '#include "stretto/kernel/b.h"\n'
        self.assert_finds("stretto/base/a.cc", below, "does not let base include kernel")
        self.assert_finds("stretto/base/a_test.cc", below, "does not let base include kernel")
        self.assert_clean("stretto/kernel/a.cc", HEAD + '#include "stretto/base/b.h"\n')
        self.assert_clean("stretto/kernel/a.cc", below)
        self.assert_clean("tests/contract/a.cc", below)
        self.assert_finds("stretto/other/a.cc", HEAD, "other is no layer")
        self.assert_finds("stretto/base/a.cc", HEAD + '#include "stretto/stretto.h"\n', "umbrella")
        self.assert_finds("stretto/base/a.cc", HEAD + '#include "b.h"\n', "repository root")
        contract = HEAD + '#include "tests/contract/b.h"\n'
        self.assert_clean("stretto/base/a_test.cc", contract)
        self.assert_finds("stretto/base/a.cc", contract, "does not know tests/")

    def test_layers_form_no_cycle(self):
        layers = tidy.read_layers("// head\n# comment\nbase  kernel\nkernel  base\n")
        self.assertEqual(layers, {"base": ["kernel"], "kernel": ["base"]})
        findings = list(tidy.check_layers_file(layers))
        self.assertEqual([finding.text for finding in findings],
                         ["base uses kernel, which is not above it"])

    def test_layers_are_those_of_the_table(self):
        layers = {"base": [], "kernel": ["base"]}
        table = "| layer | uses | what |\n|---|---|---|\n| base | | x |\n| kernel | base | y |\n"
        findings = lambda text: [finding.text for finding in tidy.check_layers_table(layers, text)]
        self.assertEqual(findings(table), [])
        without = table.replace("| base | y", "| | y")
        self.assertIn("has no row: | kernel | base", findings(without)[0])
        swapped = "".join(reversed(table.splitlines(keepends=True)))
        self.assertIn("not in the order", findings(swapped)[0])

    def test_optional_libraries_stay_in_their_folder(self):
        include = HEAD + "#include <torch/torch.h>\n"
        self.assert_finds("stretto/kernel/a.cc", include, "belongs in stretto/torch")
        self.assert_clean("stretto/torch/a.cc", include)
        self.assert_clean("examples/a.cc", include)
        torch_layer = HEAD + '#pragma once\n#include "stretto/torch/a.h"\n'
        for name, problems in [("stretto.h", 1), ("torch.h", 0)]:
            source = self.source(f"include/stretto/{name}", torch_layer)
            self.assertEqual(len(list(tidy.check_includes(source, LAYERS))), problems)

    def test_public_headers(self):
        body = HEAD + '#pragma once\n#include "stretto/base/{}.h"\n'
        private = self.source("stretto/base/private.h", HEAD + "#pragma once\n")
        public = self.source("include/stretto/base/public.h", HEAD + "#pragma once\n")
        good = self.source("include/stretto/kernel/good.h", body.replace("{}", "public"))
        bad = self.source("include/stretto/kernel/bad.h", body.replace("{}", "private"))
        twice = self.source("stretto/kernel/good.h", body.replace("{}", "private"))
        findings = list(tidy.check_public_headers([private, public, good, bad, twice]))
        self.assertEqual([finding.path for finding in findings],
                         ["include/stretto/kernel/bad.h", "stretto/kernel/good.h"])

    def test_examples_include_what_is_installed(self):
        body = HEAD + '#include "examples/b.h"\n#include "{}"\n'
        public = self.source("include/stretto/base/public.h", HEAD + "#pragma once\n")
        for header, problems in [("stretto/base/public.h", 0), ("stretto/base/private.h", 1),
                                 ("tests/support/files.h", 1)]:
            example = self.source("examples/a.cc", body.replace("{}", header))
            findings = list(tidy.check_public_headers([public, example]))
            self.assertEqual(len(findings), problems, header)

    def test_headers_that_include_each_other(self):
        body = HEAD + '#pragma once\n#include "stretto/base/{}.h"\n'
        sources = [self.source(f"stretto/base/{name}.h", body.replace("{}", other))
                   for name, other in [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]]
        findings = list(tidy.check_include_cycles(sources))
        self.assertEqual(len(findings), 1)
        self.assertIn("a.h -> stretto/base/b.h -> stretto/base/c.h", findings[0].text)

    def test_headers_compile_alone(self):
        good = "stretto/base/good.h"
        bad = "stretto/base/bad.h"
        self.source(good, "#pragma once\n#include <string>\nstd::string a();\n")
        self.source(bad, "#pragma once\nstd::string a();\n")
        problems = dict(header_check.check(self.root, [good, bad], ""))
        self.assertEqual(list(problems), [bad])
        self.assertIn("does not compile alone", problems[bad])
        # A header that failed is compiled again; the contents of its includes decide whether a
        # result is valid.
        self.source(bad, '#pragma once\n#include "stretto/base/good.h"\nstd::string b();\n')
        self.assertEqual(dict(header_check.check(self.root, [good, bad], "")), {})
        self.source(good, "#pragma once\n")
        self.assertEqual(list(dict(header_check.check(self.root, [good, bad], ""))), [bad])

    def test_headers_wait_no_longer_than_there_is_time(self):
        bad = "stretto/base/bad.h"
        self.source(bad, "#pragma once\nstd::string a();\n")
        self.assertEqual(dict(header_check.check(self.root, [bad], "", seconds=-1)), {})
        self.assertEqual(list(dict(header_check.check(self.root, [bad], ""))), [bad])

    def test_what_a_killed_compiler_was_to_look_at_is_not_known_to_be_well(self):
        self.source("compiler", "#!/bin/sh\nkill -9 $$\n")
        compiler = self.root / "compiler"
        compiler.chmod(0o755)
        header = "stretto/base/a.h"
        self.source(header, "#pragma once\n")
        with unittest.mock.patch.object(header_check, "COMPILER", str(compiler)):
            for _ in range(2):
                (_, text), = header_check.check(self.root, [header], "")
                self.assertIn("compiler ended with -9", text)
        with unittest.mock.patch.object(clang_tidy, "CLANG_TIDY", compiler):
            self.assertIn("compiler ended with -9", clang_tidy._tidy(header, []))


class ChangesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        changes.git(self.root, "init", "--quiet")

    def commit(self, name, text, hour):
        (self.root / name).write_text(text)
        changes.git(self.root, "add", name)
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet",
                        "-m", name], cwd=self.root, check=True,
                       env={**os.environ, "GIT_COMMITTER_DATE": f"2026-01-02T{hour:02}:00:00Z"})

    def test_what_changed_last_comes_first(self):
        self.commit("old", "1", 1)
        self.assertEqual(changes.lately(self.root), {}, "all is new where there is no history")
        self.commit("twice", "1", 11)
        self.commit("once", "1", 12)
        self.commit("twice", "2", 20)
        (self.root / "once").write_text("2")
        self.assertEqual(changes.lately(self.root), {"once": 0, "twice": 1})
        changes.git(self.root, "checkout", "--quiet", "once")
        (self.root / "new file").write_text("1")
        self.assertEqual(changes.lately(self.root), {"new file": 0, "twice": 1, "once": 2})

    def test_says_that_git_is_missing(self):
        with unittest.mock.patch.dict(os.environ, PATH=str(self.root)):
            with self.assertRaisesRegex(SystemExit, "git is missing"):
                changes.lately(self.root)


class ClangTidyTest(unittest.TestCase):
    def test_looks_at_some_however_late_it_is(self):
        paths = ["a.cc", "b.cc", "c.cc", "d.cc"]
        with unittest.mock.patch.dict(os.environ, STRETTO_JOBS="2"):
            found = clang_tidy.look(paths, lambda path: "", seconds=-1)
        self.assertEqual(list(found), paths[:2], "one for each worker")

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that stretto's DDP and PyTorch's compute the same bits, and of the output of ./dev bench
ddp."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

import ddp

BUILD = pathlib.Path(os.environ["STRETTO_BUILD_DIR"])
HAVE_TORCH = os.environ["STRETTO_HAVE_TORCH"] == "ON"
PYTHON = ddp.python_with_torch(BUILD) if HAVE_TORCH else None


def fingerprints(system, steps):
    """Returns the fingerprints of each model's parameters after some steps, on each of two
    ranks."""
    job = ddp.Job(system, 2, BUILD, PYTHON, small=True)
    try:
        found = {}
        for model in ddp.MODELS:
            job.ask(f"train {model} ddp none {steps}")
            found[model] = [answer["fingerprint"]
                            for answer in job.ask(f"fingerprint {model} ddp")]
        return found
    finally:
        job.close()


class SameBitsTest(unittest.TestCase):
    @unittest.skipUnless(HAVE_TORCH, "built without libtorch")
    @unittest.skipUnless(PYTHON, "no Python has the libtorch of this build")
    def test_two_ranks_train_like_those_of_python(self):
        # Two ranks have only one order of summation, and division by two is exact.
        own = fingerprints("stretto", 5)
        self.assertEqual(own, fingerprints("gloo", 5))
        for model, of_ranks in own.items():
            self.assertEqual(of_ranks[0], of_ranks[1], model)
        self.assertNotEqual(own, fingerprints("stretto", 4))


class PythonTest(unittest.TestCase):
    @unittest.mock.patch.dict("os.environ")
    def test_it_is_the_one_that_cmake_has_found(self):
        os.environ.pop("STRETTO_TORCH_PYTHON", None)
        build = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.assertIsNone(ddp.python_with_torch(build))
        cache = build / "CMakeCache.txt"
        for python in (None, "/a/bin/python3"):
            cache.write_text(f"//Of PyTorch\nSTRETTO_PYTHON:FILEPATH={python or ''}\nA:PATH=/b\n")
            self.assertEqual(ddp.python_with_torch(build), python)


class InterruptedTest(unittest.TestCase):
    def test_a_rank_that_says_nothing_is_not_awaited_for_ever(self):
        log = pathlib.Path(self.enterContext(tempfile.NamedTemporaryFile()).name)
        log.write_text("its last words\n")
        with unittest.mock.patch.object(ddp, "ANSWER_SECONDS", 0.1), \
                subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True) as process:
            try:
                with self.assertRaisesRegex(ddp.RankFailed,
                                            "sleep 60: no answer within 0.1 s: its last words"):
                    ddp.Rank(process, log).hear()
            finally:
                process.kill()

    def test_what_was_measured_before_a_failure_is_kept(self):
        def measure(_arguments, ranks, _python):
            yield {"ranks": ranks}
            raise ddp.RankFailed

        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with unittest.mock.patch.object(ddp, "measure", measure), \
                self.assertRaises(ddp.RankFailed):
            ddp.main(["--json", str(folder / "lines"), "--systems", "stretto"])
        line, = map(json.loads, (folder / "lines").read_text().splitlines())
        self.assertEqual((line["ranks"], line["rounds"]), (2, 5))


class ReportTest(unittest.TestCase):
    FIGURES = {("stretto", "none"): [100.0, 200.0, 100.0],
               ("stretto", "ddp"): [110.0, 210.0, 102.0],
               ("stretto", "floor"): [104.0, 208.0, 101.0],
               ("gloo", "none"): [100.0, 100.0, 100.0], ("gloo", "ddp"): [140.0, 150.0, 160.0]}

    def test_modes_are_compared_with_the_same_round_of_the_same_program(self):
        line = ddp.line_of("mlp", 2, ddp.parse_arguments([]), self.FIGURES)
        added = line["added"]["stretto ddp"]
        self.assertAlmostEqual(added["median"], 0.05)
        self.assertAlmostEqual(added["least"], 0.02)
        self.assertAlmostEqual(added["most"], 0.1)
        self.assertIn("| floor | stretto | stretto above the floor | DDP over Gloo |",
                      ddp.table([line]))
        self.assertIn("| 4.0 % (1.0 to 4.0) | 5.0 % (2.0 to 10.0) | 1.0 % (1.0 to 6.0) "
                      "| 50.0 % (40.0 to 60.0) |", ddp.table([line]))
        self.assertIn("| 0.20 |", ddp.table([line]))

    def test_what_a_parameter_costs_is_the_difference_shared_out(self):
        line = ddp.line_of("crumbs", 2, ddp.parse_arguments(["--zero", "zero"]), self.FIGURES)
        self.assertAlmostEqual(line["ns_per_parameter"]["stretto ddp"]["median"], 10)
        self.assertIn("stretto ddp adds 10 ns per parameter", ddp.table([line]))
        self.assertIn("stretto floor adds 4 ns per parameter", ddp.table([line]))
        self.assertIn("stretto above the floor adds 2 ns per parameter", ddp.table([line]))
        self.assertIn("gloo ddp adds 50 ns per parameter", ddp.table([line]))

    @unittest.skipUnless(HAVE_TORCH, "built without libtorch")
    def test_chosen_modes_are_measured_and_shown(self):
        words = ["--systems", "stretto", "--modes", "floor,meet,measured", "--rounds", "1"]
        arguments = ddp.parse_arguments([*words, "--seconds", "0.01"])
        job = ddp.Job("stretto", 3, BUILD, PYTHON, small=True)
        try:
            figures = ddp.measure_model({"stretto": job}, "mlp", arguments)
        finally:
            job.close()
        modes = {mode for _, mode in figures}
        self.assertEqual(modes, {"none", "floor", "meet", "measured"})
        line = ddp.line_of("mlp", 3, arguments, figures)
        self.assertIn("| meeting only | floor | buckets of measured size |", ddp.table([line]))

    @unittest.skipUnless(HAVE_TORCH, "built without libtorch")
    def test_hooks_and_bookkeeping_cost_little_per_parameter(self):
        words = ["--systems", "stretto", "--modes", "floor,ddp", "--rounds", "5"]
        arguments = ddp.parse_arguments([*words, "--seconds", "0.05", "--clock", "cpu", "--step",
                                         "least"])
        job = ddp.Job("stretto", 2, BUILD, PYTHON)
        try:
            figures = ddp.measure_model({"stretto": job}, "crumbs", arguments)
        finally:
            job.close()
        line = ddp.line_of("crumbs", 2, arguments, figures)
        self.assertIn("stretto above the floor adds", ddp.table([line]))
        # It takes some hundred nanoseconds, and more with sanitizers or on a busy machine.
        self.assertLess(line["ns_per_parameter"]["stretto above the floor"]["median"], 5000)
        floor, own = line["step_us"]["stretto floor"], line["step_us"]["stretto ddp"]
        self.assertLess(own, 3 * floor)

    @unittest.skipUnless(HAVE_TORCH, "built without libtorch")
    def test_the_floor_adds_up_what_all_ranks_have(self):
        job = ddp.Job("stretto", 3, BUILD, PYTHON, small=True)
        try:
            job.ask("train transformer floor none 2")
            sums = [answer["sum"] for answer in job.ask("floor transformer floor")]
        finally:
            job.close()
        self.assertEqual(sums, [3.0] * 3, "the mean of 1.5, 3 and 4.5")

    @unittest.skipUnless(HAVE_TORCH, "built without libtorch")
    def test_a_rank_that_fails_is_quoted(self):
        job = ddp.Job("stretto", 2, BUILD, PYTHON, small=True)
        try:
            with self.assertRaisesRegex(ddp.RankFailed, "no model 'nonsense'"):
                job.ask("train nonsense ddp none 1")
        finally:
            job.close()

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of the tables of bench/convergence.py, on made-up curves."""

import pathlib
import stat
import tempfile
import unittest

import convergence
import peers

OUTPUT = "".join(
    f"{launcher}{hook}: step {step}: loss {loss * factor:.4f}, sent {step * sent} bytes\n"
    for launcher, hook, factor, sent in (("", "dense f32", 1.0, 1000000),
                                         ("[0] ", "top_k 1 %", 1.1, 10000))
    for step, loss in zip(range(10, 90, 10), (8, 7, 6, 5, 4, 3, 2, 1)))


class TablesTest(unittest.TestCase):
    def setUp(self):
        self.found = {hook: convergence.curve_of("noise\n" + OUTPUT, hook)
                      for hook in ("dense f32", "top_k 1 %")}

    def test_a_row_has_the_losses_and_the_bytes_of_a_hook(self):
        self.assertEqual(convergence.table("m", self.found).splitlines(), [
            "| m | loss at 20 | loss at 40 | loss at 60 | loss at 80 | end, of dense | MB sent "
            "| MB to 8.0000 | MB to 7.0000 | MB to 5.0000 | MB to 1.0000 |",
            "|" + " --- |" * 11,
            "| dense f32 | 7.0000 | 5.0000 | 3.0000 | 1.0000 | +0.0 % | 80 | 10 | 20 | 40 | 80 |",
            "| top_k 1 % | 7.7000 | 5.5000 | 3.3000 | 1.1000 | +10.0 % | 0.8 | 0.2 | 0.3 | 0.5 "
            "| - |"])

    def test_a_page_gets_new_tables_and_keeps_its_words(self):
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write(f"Words.\n{convergence.BEGIN}\nold\n{convergence.END}\nMore.\n")
            file.flush()
            path = pathlib.Path(file.name)
            for _ in range(2):
                peers.put_into(path, convergence.BEGIN, convergence.END, "| new |")
                self.assertEqual(path.read_text(), f"Words.\n{convergence.BEGIN}\n\n| new |\n\n"
                                                   f"{convergence.END}\nMore.\n")
        self.assertIn(convergence.BEGIN, convergence.DOCUMENT.read_text())
        self.assertIn(convergence.END, convergence.DOCUMENT.read_text())


class ResumeTest(unittest.TestCase):
    def test_what_the_file_holds_is_not_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "bin").mkdir()
            program = build / "bin" / "12_compressed_digits"
            program.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/calls\n"
                               "echo \"$4: step 10: loss 0.5, sent 7 bytes\"\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            arguments = convergence.parse_arguments(
                ["--models", "digits", "--ranks", "2", "--digits-steps", "10", "--build", folder,
                 "--json", folder + "/runs.jsonl"])
            first = list(convergence.tables(arguments, ["dense f32"]))
            both = list(convergence.tables(arguments, ["dense f32", "int8"]))
            self.assertEqual((build / "calls").read_text().splitlines(), [
                "data/digits.csv 2 10 dense f32", "data/digits.csv 2 10 int8"])
            self.assertIn("| dense f32 | 0.5000", first[0])
            self.assertIn("| int8 | 0.5000 | 0.5000 | 0.5000 | 0.5000 | +0.0 % | 7e-06 |",
                          both[0])

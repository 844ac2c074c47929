# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of the output of bench/slow_links.py, on made-up lines."""

import unittest

import slow_links


class TableTest(unittest.TestCase):
    def test_medians_are_compared_with_dense(self):
        lines = [{"system": "stretto", "codec": codec, "step_s": step_s / factor, "rate": rate}
                 for codec, steps in (("as they are", (2.0, 4.0, 9.0)), ("int8", (1.0, 1.0, 7.0)))
                 for step_s in steps for rate, factor in ((1e8, 1), (1e9, 10))]
        lines += [{"system": "DDP", "codec": "none", "step_s": 5.5, "alone_s": 0.5, "rate": rate}
                  for rate in (1e8, 1e9)]
        head, _, *rows = slow_links.table(lines, 20).splitlines()
        self.assertIn("| step at 100 Mbit/s, ms | alone, ms | dense f32 / (step - alone) "
                      "| step at 1000 Mbit/s, ms |", head)
        self.assertEqual(rows,
                         ["| stretto | as they are | 4000.0 |  | 1.00 | 400.0 |  | 1.00 |",
                          "| stretto | int8 | 1000.0 |  | 4.00 | 100.0 |  | 4.00 |",
                          "| DDP | none | 5500.0 | 500.0 | 0.80 | 5500.0 | 500.0 | 0.08 |"])

    def test_ranks_of_a_host_follow_each_other(self):
        self.assertEqual(slow_links.parse_arguments(["--ranks", "2"]).placement, [0, 0, 1, 1])

    def test_layers_have_four_megabytes(self):
        self.assertEqual(slow_links.parse_arguments(["--megabytes", "8"]).megabytes, 8)
        with self.assertRaises(SystemExit):
            slow_links.parse_arguments(["--megabytes", "6"])

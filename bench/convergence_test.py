# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables of bench/convergence.py, of curves that nobody had to train."""

import unittest

import convergence

OUTPUT = "".join(
    f"{hook}: step {step}: loss {loss * factor:.4f}, sent {step * sent} bytes\n"
    for hook, factor, sent in (("dense f32", 1.0, 1000000), ("top_k 1 %", 1.1, 10000))
    for step, loss in zip(range(10, 90, 10), (8, 7, 6, 5, 4, 3, 2, 1)))


class TablesTest(unittest.TestCase):
    def setUp(self):
        self.found = convergence.curves("noise\n" + OUTPUT)

    def test_losses_against_steps(self):
        self.assertEqual(convergence.by_steps("m", self.found).splitlines(), [
            "| m, loss after step | 20 | 40 | 60 | 80 | end, of dense | sent |",
            "|---|---|---|---|---|---|---|",
            "| dense f32 | 7.0000 | 5.0000 | 3.0000 | 1.0000 | +0.0 % | 80 MB |",
            "| top_k 1 % | 7.7000 | 5.5000 | 3.3000 | 1.1000 | +10.0 % | 0.8 MB |"])

    def test_losses_against_bytes(self):
        self.assertEqual(convergence.by_bytes("m", self.found).splitlines()[2:], [
            "| dense f32 | 10 MB | 20 MB | 40 MB | 80 MB |",
            "| top_k 1 % | 0.2 MB | 0.3 MB | 0.5 MB | - |"])


if __name__ == "__main__":
    unittest.main()

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of the measurements of bench/hosts.py other than tables. They are skipped without the
drivers or network namespaces."""

import pathlib
import re
import tempfile
import unittest

import hosts_page
import hosts_test


class OptionsTest(hosts_test.RunsHosts):
    def test_encrypted_links_give_the_same(self):
        lines = self.run_hosts("--encryption", "tls", "--bytes", "16,256K", "--no-algorithms")
        self.assertEqual({(entry["system"], entry["bytes"]) for entry in lines},
                         {(system, size) for system in ("stretto", "stretto_tls")
                          for size in (16, 256 << 10)})
        self.assertIn("With TLS, stretto takes", self.said)

    def test_a_step_of_training_keeps_the_wire_busy(self):
        # On a busy machine the wire may be less busy than required, so exit status 1 is allowed.
        shares, = self.run_hosts("--training", codes=(0, 1))
        self.assertEqual(list(shares), ["2x2"])
        # The wire carries something, and no more than its rate allows, except for the initial
        # burst.
        self.assertTrue(all(0.1 < share < 1.1 for share in shares["2x2"]), shares)
        self.assertIn("The wire is busy", self.said)

    @hosts_test.thorough
    def test_a_mesh_costs_something_for_each_rank(self):
        facts = self.run_hosts("--mesh")
        self.assertEqual([fact["ranks"] for fact in facts], [8, 60])
        self.assertGreater(facts[1]["descriptors_median"], facts[0]["descriptors_median"] + 51)
        self.assertGreater(facts[1]["bytes_median"], facts[0]["bytes_median"])

    @unittest.skipUnless((hosts_test.BUILD / "bin/lossy_cable_program").exists(),
                         "the cable is not built")
    def test_several_connections_do_more_where_each_is_limited(self):
        words = ["--connection-rate", "40M", "--rate", "160M", "--shapes", "2x1", "--bytes", "256K",
                 "--no-algorithms"]
        one, = self.run_hosts(*words)
        four, = self.run_hosts(*words, "--streams", "4")
        self.assertGreater(one["p50_us"], 8 * 2**18 / 40)  # The connection's rate limit holds.
        self.assertLess(four["p50_us"], one["p50_us"] / 2)
        self.assertIn("40 Mbit/s per connection", self.said)

    @hosts_test.thorough
    def test_plots_have_every_point(self):
        lines = self.run_hosts("--plots", "--rate", "10G", "--bytes", "1M")
        self.assertTrue(all(entry["p50_us"] > 0 for entry in lines))
        self.assertEqual({entry["plot"] for entry in lines}, {"size", "at_once", "ranks"})

    @hosts_test.thorough
    def test_a_part_of_the_page_is_measured_and_written(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("\n".join(mark.format("canonical")
                                      for mark in (hosts_page.BEGIN, hosts_page.END)))
            lines = self.run_hosts("--page", page, "--parts", "canonical")
            text = page.read_text()
            self.assertIn("`./dev bench hosts --operations all_reduce,reduce_scatter,reduce", text)
            self.assertEqual(len(re.findall(r"^\| \w*reduce", text, re.M)), len(lines))

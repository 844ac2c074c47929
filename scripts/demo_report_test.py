# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of the report of ./dev demo."""

import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

import demo
import demo_report

START = {"model": "cnn", "parameters": 10, "global_batch": 8, "threads": 1, "links": "<shm>",
         "progress_thread": False}


def run_of(processes, difference):
    step = {"samples_per_second": 100.0 * processes, "step_seconds": 0.01, "ranks_agree": True,
            "communication_seconds": 0.002, "exposed_seconds": 0.001}
    return demo.Run(processes, ["train"], START,
                    [step | {"loss": 2.0 / (i + 1) + difference} for i in range(100)],
                    {"test_accuracy": 0.9}, 1.0)


class ReportTest(unittest.TestCase):
    def test_the_picture_has_all_lines_and_bars(self):
        runs = [run_of(1, 0), run_of(2, 1e-7), run_of(4, 0)]
        summaries = [demo.summarize(run, runs[0]) for run in runs]
        self.assertEqual(len(demo.check(summaries)), 3)
        with tempfile.TemporaryDirectory() as folder:
            picture = demo_report.write(pathlib.Path(folder), runs, summaries, []).read_text()
        xml.etree.ElementTree.fromstring(picture)
        self.assertEqual(picture.count('class="line"'), 3 + 2)
        self.assertEqual(picture.count("<rect"), 1 + 3 + 2 * 2)
        for text in ("400, 4.00x", "1.0 of 10.0 ms", "4 processes", "what communication costs it"):
            self.assertIn(text, picture)
        self.assertNotIn("nan", picture)

    def test_the_cost_of_communication_is_no_share_of_its_time(self):
        run = run_of(2, 0)
        for step in run.steps:
            step["exposed_seconds"] = 0.004  # Longer than from the first bucket to the last.
        text = demo.communication_text(demo.summarize(run, run))
        self.assertIn("took 2.0 ms; it cost the step 4.0 ms", text)
        self.assertNotIn("%", text)

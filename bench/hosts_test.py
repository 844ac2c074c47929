# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of bench/hosts.py. Some are skipped without the drivers or network namespaces."""

import functools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import conversation
import hosts
import hosts_floor
import hosts_joining
import hosts_page
import hosts_plots
import hosts_report
import hosts_systems

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("STRETTO_BUILD_DIR", HERE.parent / "build/release"))
GIGABIT = hosts_floor.Link(1e9, 100e-6, 125000)
sys.path.append(str(HERE / "drivers"))
import plain_link  # noqa: E402  pylint: disable=wrong-import-position


thorough = unittest.skipUnless(os.environ.get("STRETTO_THOROUGH"),
                               "it takes long: ./dev test --all runs it")


def line(system, p50, size=8, repeat=0, **more):
    return {"operation": "all_reduce", "bytes": size, "system": system, "algorithm": "",
            "repeat": repeat, "p50_us": p50, "floor_us": 50.0, "version": "stretto 1"} | more


FACTS = {"shape": "2x2", "rate": 1e9, "cards": 1, "delay_ms": 0, "loss_permille": 0,
         "connection_rate": 0, "round_trip_us": 100.0, "plain_16mib_ms": 141.0,
         "missing": {"gloo": "not there"}, "notes": {}}


class ShapesTest(unittest.TestCase):
    def test_shapes_place_ranks(self):
        self.assertEqual(hosts_systems.placement_of("2x2"), [0, 0, 1, 1])
        self.assertEqual(hosts_systems.placement_of("4x1"), [0, 1, 2, 3])
        self.assertEqual(hosts_systems.placement_of("3+1"), [0, 0, 0, 1])
        self.assertEqual(hosts_systems.placement_of("rr2x2"), [0, 1, 0, 1])

    def test_one_host_is_refused(self):
        for words in (["--shapes", "1x4"], ["--shapes", "two"], ["--rate", "fast"],
                      ["--shapes", "4x1", "--delay", "1"],
                      ["--plots", "--encryption", "tls"],
                      ["--page", "page.md", "--plots"]):
            with self.assertRaises(SystemExit), open(os.devnull, "w") as nowhere:
                stderr, sys.stderr = sys.stderr, nowhere
                try:
                    hosts.parse_arguments(words)
                finally:
                    sys.stderr = stderr


class FloorTest(unittest.TestCase):
    def test_bytes_of_the_busiest_port(self):
        two, four, uneven = [0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1]
        expected = {("all_reduce", 0): 100, ("all_gather", 0): 50, ("reduce_scatter", 0): 50,
                    ("all_to_all", 0): 100, ("broadcast", 0): 100, ("barrier", 0): 0,
                    ("reduce", 0): 100,
                    ("all_reduce", 1): 150, ("all_gather", 1): 75, ("all_to_all", 1): 75,
                    ("all_reduce", 2): 100, ("all_gather", 2): 75, ("all_to_all", 2): 75}
        for (operation, place), many in expected.items():
            placement = (two, four, uneven)[place]
            self.assertEqual(hosts_floor.host_bytes(operation, 100, placement), many,
                             (operation, placement))

    def test_the_canonical_order_costs_more_where_ranks_were_dealt_out_in_turns(self):
        self.assertEqual(hosts_floor.subtrees([0, 1, 0, 1]), [2, 2])
        self.assertEqual(hosts_floor.subtrees([0, 0, 1, 1, 1]), [1, 2])
        for operation, times in (("all_reduce", 1.5), ("reduce_scatter", 2), ("reduce", 4 / 3)):
            least = hosts_floor.floor_s(operation, 16 << 20, [0, 1, 0, 1], GIGABIT)
            canonical = hosts_floor.canonical_floor_s(operation, 16 << 20, [0, 1, 0, 1], GIGABIT)
            self.assertAlmostEqual(canonical / least, times, delta=0.02)
            for placement in ([0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]):
                self.assertIsNone(hosts_floor.canonical_floor_s(operation, 100, placement, GIGABIT))
        for operation in ("all_gather", "broadcast", "barrier"):
            self.assertIsNone(hosts_floor.canonical_floor_s(operation, 9, [0, 1, 0, 1], GIGABIT))

    def test_16_mib_of_two_hosts_take_140_ms_at_a_gigabit(self):
        seconds = hosts_floor.floor_s("all_reduce", 16 << 20, [0, 0, 1, 1], GIGABIT)
        self.assertAlmostEqual(seconds, 0.140, delta=0.002)

    def test_few_bytes_take_the_round_trips(self):
        self.assertAlmostEqual(hosts_floor.floor_s("all_reduce", 8, [0, 1, 2, 3], GIGABIT), 100e-6)
        self.assertAlmostEqual(hosts_floor.floor_s("all_to_all", 16, [0, 1, 2, 3], GIGABIT), 50e-6)


class PlainLinkTest(unittest.TestCase):
    def test_a_side_that_closes_before_the_end_is_told(self):
        near, far = socket.socketpair()
        with near, far:
            far.sendall(bytes(5))
            far.close()
            with self.assertRaisesRegex(ConnectionError, "3 bytes before the end"):
                plain_link.receive(near, 8)


class OutputsTest(unittest.TestCase):
    def test_a_rank_that_fails_is_named_at_once(self):
        network = unittest.mock.Mock()
        network.enter.return_value = []
        scripts = ["import time; time.sleep(60)", "raise SystemExit('the reason')"]
        with self.assertRaisesRegex(conversation.SystemFailed, "rank 1, ended with 1: the reason"):
            hosts.outputs_of_each([[sys.executable, "-c", script] for script in scripts],
                                  [os.environ] * 2, network, [0, 1], 50)

    def test_a_rank_may_print_more_than_a_pipe_holds(self):
        network = unittest.mock.Mock()
        network.enter.return_value = []
        script = "import sys; print('x' * (1 << 20)); print('y' * (1 << 20), file=sys.stderr)"
        outputs = hosts.outputs_of_each([[sys.executable, "-c", script]] * 2, [os.environ] * 2,
                                        network, [0, 1], 50)
        self.assertEqual([len(each) for each in outputs], [(1 << 20) + 1] * 2)


class ReportTest(unittest.TestCase):
    LINES = [line("stretto", 90, chosen="ring"), line("stretto", 110, repeat=1, chosen="ring"),
             line("openmpi", 200),
             line("stretto", 100, algorithm="direct", predicted_us=90.0, chosen="ring"),
             line("stretto", 200, algorithm="direct", predicted_us=180.0, repeat=1, chosen="ring"),
             line("stretto", 60, algorithm="direct", predicted_us=90.0, repeat=2, chosen="two"),
             line("stretto", 100, algorithm="two_level", predicted_us=150.0, chosen="ring")]

    def test_systems_stand_beside_the_reference(self):
        text = hosts_report.text(FACTS, self.LINES)
        self.assertIn("| all_reduce | 8 B | 50 us | 100 us (2.00) | 200 us (4.00) | ring |", text)
        self.assertIn("Without Gloo: not there.", text)

    def test_what_was_chosen_has_its_prediction(self):
        lines = [line("stretto", 100, chosen="ring", predicted_us=110.0), line("gloo", 90)]
        text = hosts_report.text(FACTS, lines)
        self.assertIn("| 90 us (1.80) | ring (1.10) |", text)
        self.assertIn("in brackets: within 15% in 1 of 1.", text)

    def test_the_canonical_order_has_a_reference_of_its_own(self):
        text = hosts_report.text(FACTS, [line("stretto", 90, canonical_us=75.0),
                                         line("openmpi", 200)])
        self.assertIn("| 8 B | 50 us (75 us) | 90 us (1.80; 1.20) | 200 us (4.00) |", text)

    def test_predictions_stand_beside_what_was_measured(self):
        text = hosts_report.text(FACTS, self.LINES)
        self.assertIn("| 8 B | 100 us (0.90) | 100 us (1.50) |", text)
        self.assertIn("within 15% in 1 of 2", text)

    def test_encryption_stands_beside_what_it_costs(self):
        lines = [line("stretto", 100, size) for size in (8, 16)] + [
            line("stretto_tls", 110, 8), line("stretto_tls", 150, 16), line("gloo", 90, 8)]
        text = hosts_report.text(FACTS, lines)
        self.assertIn("| bytes | reference | stretto | stretto, TLS | Gloo |", text)
        self.assertIn("| 100 us (2.00) | 110 us (2.20) | 90 us (1.80) |", text)
        self.assertIn("With TLS, stretto takes 1.10 to 1.50 times as long, median 1.30.", text)
        self.assertNotIn("TLS", hosts_report.text(FACTS, self.LINES))

    def test_a_page_keeps_what_is_around_a_part(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            other = f"{hosts_page.BEGIN.format('10G')}\nanother\n{hosts_page.END.format('10G')}\n"
            path.write_text(f"{other}{hosts_page.BEGIN.format('loss')}\nold\n"
                            f"{hosts_page.END.format('loss')}\nafter\n")
            hosts_page.put(path, "loss", "first\n\nsecond")
            text = path.read_text()
            self.assertTrue(text.startswith(other) and text.endswith("\nafter\n"), text)
            self.assertNotIn("old", text)
            self.assertIn("\n\nfirst\n\nsecond\n\n", text)
            path.write_text("no place")
            with self.assertRaises(SystemExit):
                hosts_page.put(path, "loss", "")

    def test_a_wire_that_is_idle_is_bad(self):
        arguments = hosts.parse_arguments(["--training"])
        report = hosts.wire_report(arguments, {"2x2": [0.8, 0.8, 1.0], "4x1": [0.8, 0.9, 1.0]})
        self.assertEqual(report.bad, ["2x2: the wire is busy 80.0% of the time, not 90%"])
        self.assertIn("2x2 80.0 % of the time (least 80.0 %); 4x1 90.0 %", report.text)
        fast = hosts.parse_arguments(["--training", "--rate", "10G"])
        self.assertEqual(hosts.wire_report(fast, {"2x2": [0.4]}).bad, [])


class PageTest(unittest.TestCase):
    def test_a_part_is_measured_and_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text("\n".join(mark.format("connections")
                                      for mark in (hosts_page.BEGIN, hosts_page.END)))
            arguments = hosts.parse_arguments(["--page", str(path), "--parts", "connections"])
            with unittest.mock.patch.multiple(
                    hosts, measure_shape=lambda given, shape: (
                        FACTS | {"shape": shape, "missing": {}},
                        [line("stretto", 100 * given.streams)]), print=lambda *_, **__: None,
                    create=True):
                reports = list(hosts.measure_page(arguments))
            self.assertEqual([report.lines[0]["p50_us"] for report in reports], [100, 400])
            text = path.read_text()
            for words in hosts_page.PARTS["connections"]:
                self.assertIn(f"`./dev bench hosts {words}`, stretto 1, while others used ",
                              text.replace("\n", " "))
            for time in ("100 us (2.00)", "400 us (8.00)"):
                self.assertIn(f"\n| all_reduce | 8 B | 50 us | {time} | - |\n", text)

    def test_the_page_has_a_place_for_every_part(self):
        text = (HERE.parent / "docs/measurements/hosts.md").read_text()
        for part in hosts_page.PARTS:
            self.assertEqual(text.count(hosts_page.BEGIN.format(part)), 1, part)
            self.assertEqual(text.count(hosts_page.END.format(part)), 1, part)


class PlotsTest(unittest.TestCase):
    def test_points_are_medians_of_speeds(self):
        lines = [{"plot": "at_once", "x": 4, "bytes": 4 << 20, "name": "stretto", "p50_us": time}
                 for time in (1e5, 2e5, 4e5)]
        lines.append({"plot": "at_once", "x": 4, "bytes": 4 << 20, "name": "Gloo",
                      "error": "unsupported"})
        speeds = hosts_plots.speeds(lines, "at_once").pop("stretto")
        self.assertAlmostEqual(statistics.median(speeds[4]), (4 << 20) / 2e5)
        self.assertEqual(hosts_plots.speeds(lines, "size"), {})
        text = hosts_plots.text(lines)
        self.assertIn("| at once | stretto |\n| --- | --- |\n| 4 | 21 |", text)

    def test_a_system_that_fails_leaves_the_others_their_points(self):
        network = unittest.mock.Mock(streams=1)
        network.subnets.return_value = ["10.0.0.0/24"]
        asks = [hosts_plots.Ask("size", 64 << 10, 64 << 10),
                hosts_plots.Ask("at_once", 2, 2 << 20, 2)]

        def ask(system, variant, *_):
            if system == "gloo":
                raise conversation.SystemFailed("ended with status 1")
            return {"p50_us": variant.bytes / variant.at_once}

        def talk_with(system, *_):
            return unittest.mock.Mock(version="1", ask=functools.partial(ask, system.name))

        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.multiple(
                conversation, Conversation=talk_with), unittest.mock.patch.object(
                hosts_systems.OnHosts, "missing", lambda *_: ""):
            arguments = hosts.parse_arguments(["--repeats", "1", "--peers", folder])
            contest, _ = hosts.contest_on(arguments, [0, 0, 1, 1], network,
                                          hosts_plots.ALGORITHMS, folder)
            hosts_plots.measure(contest, asks)
        found = {plot: hosts_plots.speeds(contest.lines, plot) for plot in ("size", "at_once")}
        names = ("stretto", "stretto, two-level", "stretto, flat", "Open MPI")
        self.assertEqual(found, {"size": {name: {64 << 10: [1]} for name in names},
                                 "at_once": {name: {2: [2]} for name in names}})
        self.assertEqual([line["error"] for line in contest.lines if line["name"] == "Gloo"],
                         ["ended with status 1"] * 2)

    def test_other_numbers_of_ranks_are_on_as_many_hosts(self):
        self.assertEqual(hosts_plots.shapes_of_ranks("3+1"), ["2x1", "2x2", "2x3", "2x4"])

    def test_joining_says_the_worst(self):
        told = [json.dumps({"joined": 11.0 + rank, "met": 12.0 + rank, "bytes": 1 << 20,
                            "descriptors": 7 + rank}) for rank in range(2)]
        facts = hosts_joining.facts_of(10.0, told)
        self.assertEqual((facts["joined_s"], facts["met_s"], facts["descriptors_max"]),
                         (2.0, 3.0, 8))
        text = hosts_joining.text([facts | {"processor_s": 0.5}])
        self.assertIn("2 ranks on 4 hosts: all had joined 2.00 s", text)
        self.assertIn("ending took 0.50 s of processor time", text)

    def test_a_mesh_of_many_follows_from_two_of_few(self):
        few, many = ({"ranks": ranks, "bytes_median": ranks * 2048 + 100, "descriptors_median":
                      ranks + 10} for ranks in (8, 32))
        text = hosts_joining.mesh_text([few], [many])
        self.assertIn("costs a rank 2.0 KiB of memory (PSS) and 1.00 descriptors", text)
        self.assertIn("1000 ranks would need 2 MiB and 1010 descriptors", text)


def spaces_of(pid):
    """Returns the namespaces that this process has left behind; other tests create theirs
    meanwhile."""
    said = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout
    return [name for name in said.split() if name.startswith((f"hosts{pid}h", f"hosts{pid}s"))]


class RunsHosts(unittest.TestCase):
    said = ""  # The output of the last run.

    def run_hosts(self, *words, codes=(0,)):
        if not (BUILD / "bin/stretto_driver").exists():
            self.skipTest("the drivers are not built")
        with tempfile.TemporaryDirectory() as folder:
            lines = pathlib.Path(folder) / "lines"
            run = subprocess.Popen(
                [sys.executable, HERE / "hosts.py", "--build", BUILD, "--peers", folder,
                 "--systems", "stretto", "--repeats", "1", "--seconds", "0.01", "--json", lines,
                 *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.kill)
            said, complaints = run.communicate(timeout=250)
            if "Operation not permitted" in complaints or "is not installed" in complaints:
                self.skipTest(f"cannot make network namespaces: {complaints}")
            self.assertIn(run.returncode, codes, said + complaints)
            self.assertEqual(spaces_of(run.pid), [])
            self.said = said
            return [json.loads(text) for text in lines.read_text().splitlines()
                    ] if lines.exists() else []


class RunTest(RunsHosts):
    def test_every_operation_is_right_on_uneven_hosts_and_in_turns(self):
        lines = self.run_hosts("--shapes", "3+1,rr2x2", "--operations", "all", "--bytes", "16,256K",
                               "--algorithms", "two_level_mapped")
        # 6 operations of 2 sizes, a barrier, and one operation's algorithm by name.
        self.assertEqual(len(lines), 2 * (6 * 2 + 1 + 2))
        for entry in lines:
            self.assertGreater(entry["p50_us"], 0)
            self.assertGreater(entry["floor_us"], 0)
            self.assertIn("chosen", entry)
        named = [entry for entry in lines if entry["algorithm"]]
        self.assertTrue(all(entry["predicted_us"] > 0 for entry in named))

    def test_processes_on_four_hosts_join(self):
        if not (BUILD / "bin/join_driver").exists():
            self.skipTest("the driver of joining is not built")
        facts, = self.run_hosts("--joining", "8")
        self.assertEqual(facts["ranks"], 8)
        self.assertGreater(facts["met_s"], facts["joined_s"])
        self.assertGreater(facts["descriptors_median"], 0)

    def test_a_cable_takes_its_time(self):
        if not (BUILD / "bin/lossy_cable_program").exists():
            self.skipTest("the cable is not built")
        entry, = self.run_hosts("--delay", "10", "--bytes", "8", "--no-algorithms")
        # At least one message to the other host; the ranks of a host need not wait for each
        # other's.
        self.assertGreater(entry["p50_us"], 10_000)
        self.assertGreater(entry["predicted_us"], 0.6 * entry["p50_us"])
        self.assertLess(entry["predicted_us"], 1.6 * entry["p50_us"])

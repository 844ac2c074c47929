# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of bench/peers.py. Some are skipped if the drivers are not built."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import conversation
import figures
import peers
import peers_table
import systems

HERE = pathlib.Path(__file__).resolve().parent
RUN = {"machine": {"cpu": "a cpu", "cores": 2, "l3": "32M", "memory_gib": 24, "kernel": "6.1",
                   "huge_pages": "madvise"}, "commit": "abc", "date": "2026-01-02", "command": "x",
       "systems": [{"name": name, "version": "1", "settings": "as it is",
                    "notes": []} for name in ("stretto", "intelmpi", "mpich", "gloo", "copy")]}
FAMILIES = {"stretto": "stretto", "gloo": "gloo", "copy": "bound", "bare": "bare"}


def line(system, p50, repeat=0, regime="near", size=8, buffers="private", in_place=True, **more):
    return {"operation": "all_reduce", "ranks": 2, "bytes": size, "dtype": "f32",
            "buffers": buffers, "in_place": in_place, "algorithm": "", "system": system,
            "family": FAMILIES.get(system, "mpi"), "repeat": repeat, "regime": regime,
            "p50_us": p50, "p99_us": 2 * p50, "max_us": 3 * p50} | more


def some_lines():
    lines = []
    for size in (8, 4096, 1 << 20):
        for repeat in range(3):
            ours = (1 + repeat / 10) * size ** 0.5
            lines += [line("stretto", ours, repeat, size=size, buffers="registered"),
                      line("stretto", 2 * ours, repeat, size=size),
                      line("intelmpi", 3 * ours, repeat, size=size),
                      line("mpich", 4 * ours, repeat, size=size, in_place=False),
                      line("gloo", 400 * ours, repeat, size=size),
                      line("copy", 0.8 * ours, repeat, size=size)]
    return lines


class FiguresTest(unittest.TestCase):
    def row(self, lines):
        rows = figures.rows_of(lines)
        self.assertEqual(len(rows), 1)
        return rows[0]

    def test_ratio_is_the_median_over_repeats_with_its_spread(self):
        row = self.row([line("stretto", 1, 0, buffers="registered"),
                        line("stretto", 2, 1, buffers="registered"),
                        line("stretto", 4, 2, buffers="registered"),
                        line("mpich", 6, 0), line("mpich", 6, 1), line("mpich", 6, 2)])
        ratio = row.ratio("registered", "mpi")
        self.assertEqual((ratio.value, ratio.low, ratio.high), (3, 1.5, 6))
        self.assertIsNone(row.ratio("registered", "gloo"))
        self.assertIsNone(row.ratio("private", "mpi"))

    def test_the_best_of_all_ways_to_run_a_peer_counts(self):
        row = self.row([line("stretto", 2), line("mpich", 9), line("mpich", 5, in_place=False),
                        line("mpich", 4, buffers="huge"), line("intelmpi", 8)])
        self.assertEqual(row.best(family="mpi").p50_us, 4)
        self.assertEqual(row.ratio("private", "mpi").value, 2)

    def test_only_lines_of_one_regime_are_compared(self):
        lines = [line("stretto", 1, 0), line("stretto", 10, 1, "far"),
                 line("mpich", 2, 0), line("mpich", 100, 1, "far"), line("mpich", 100, 2, "far"),
                 line("mpich", 0.01, 0, "mixed"), line("mpich", 0.01, 1, "mixed")]
        rows = {row.regime: row for row in figures.rows_of(lines)}
        self.assertEqual(set(rows), {"near", "far"})
        self.assertEqual(rows["near"].ratio("private", "mpi").value, 2)
        self.assertEqual(rows["far"].ratio("private", "mpi").value, 10)
        self.assertEqual(figures.rows_of(lines)[0].regime, "far")

    def test_failed_lines_are_no_figures(self):
        failed = line("mpich", 1) | {"error": "no answer within 30 s"}
        row = self.row([line("stretto", 1), failed])
        self.assertIsNone(row.best(family="mpi"))

    def test_bound(self):
        row = self.row([line("stretto", 10), line("copy", 8)])
        self.assertAlmostEqual(figures.bound_share(row, "private"), 0.8)

    def test_bare(self):
        row = self.row([line("stretto", 10, size=figures.MIB), line("mpich", 12, size=figures.MIB),
                        line("bare", 8, size=figures.MIB),
                        line("bare", 6, size=figures.MIB, buffers="huge")])
        self.assertAlmostEqual(row.bare_ratio("private").value, 1.5)
        self.assertAlmostEqual(row.bare_ratio("huge").value, 2)
        self.assertIsNone(row.bare_ratio("registered"))
        # If the bytes fit into one cache line (a meeting), the kind of memory does not matter.
        row = self.row([line("stretto", 10), line("mpich", 12), line("bare", 8)])
        self.assertAlmostEqual(row.bare_ratio("registered").value, 1.5)


class PlanTest(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(peers.sizes_of("8,4K,2MiB,1g"), [8, 4096, 2 << 20, 1 << 30])
        self.assertEqual(peers.real_size("all_gather", 8, 4), 16)
        self.assertEqual(peers.real_size("all_gather", 4096, 3), 4092)
        self.assertEqual(peers.real_size("all_reduce", 8, 4), 8)

    def test_a_command_is_recorded_without_files(self):
        words = ["--json", "/a/b", "--bytes", "8", "--json=c", "--ranks=2"]
        self.assertEqual(peers.without_files(words), ["--bytes", "8", "--ranks=2"])

    def test_each_row_once(self):
        arguments = peers.parse_arguments(["--operations", "barrier,all_gather", "--bytes", "4,8"])
        self.assertEqual(peers.plan_of(arguments), [("barrier", 0), ("all_gather", 8)])

    def test_variants(self):
        every = systems.all_systems()
        wanted = ["registered", "private", "huge"]
        self.assertEqual({(variant.buffers, variant.in_place)
                          for variant in every["mpich"].variants("all_reduce", 1 << 20, wanted)},
                         {("private", True), ("private", False), ("huge", True), ("huge", False)})
        self.assertEqual({variant.buffers
                          for variant in every["stretto"].variants("broadcast", 8, wanted)},
                         {"registered", "private"})
        self.assertTrue(all(variant.in_place
                            for variant in every["gloo"].variants("all_reduce", 8, wanted)))
        self.assertEqual(every["copy"].variants("reduce_scatter", 1 << 20, wanted), [])
        self.assertEqual([variant.algorithm
                          for variant in every["copy"].variants("broadcast", 4096, wanted)],
                         ["plain", "past_cache"])
        self.assertEqual(every["bare"].variants("reduce_scatter", 1 << 20, wanted), [])
        self.assertEqual([(variant.buffers, variant.in_place) for variant in
                          every["bare"].variants("all_gather", 1 << 20, wanted)],
                         [("registered", False), ("private", False), ("huge", False),
                          ("private", False), ("huge", False)])
        self.assertEqual(len(every["bare"].variants("broadcast", 4096, wanted)), 2)
        self.assertEqual(every["bare"].variants("all_gather", 4096, wanted), [])
        self.assertEqual(every["bare"].variants("broadcast", 8, wanted),
                         [systems.Variant("barrier", 8)])
        self.assertEqual([variant.buffers for variant in
                          every["bare"].variants("all_reduce", 1 << 20, wanted)],
                         ["registered", "private", "huge", "private", "huge"])

    def test_what_cannot_become_the_best_is_not_repeated(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        place = systems.Place(2, 2, HERE, folder)
        every = systems.all_systems()
        contest = peers.Contest(peers.parse_arguments(["--peers", str(place.peers)]), [], place)
        contest.lines = [line("mpich", 40_000, size=64), line("intelmpi", 10_000, size=64)]
        variant = systems.Variant("all_reduce", 64, "private", True)
        self.assertTrue(contest.hopeless(every["mpich"], variant))
        self.assertFalse(contest.hopeless(every["intelmpi"], variant))
        contest.lines[0]["regime"] = "far"
        self.assertFalse(contest.hopeless(every["mpich"], variant))


class InterruptedTest(unittest.TestCase):
    def test_what_was_measured_before_an_interrupt_is_kept(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        words = ["--systems", "stretto", "--operations", "barrier", "--repeats", "3",
                 "--peers", str(folder), "--json", str(folder / "lines")]
        with unittest.mock.patch.object(systems.System, "missing", lambda *_: ""), \
                unittest.mock.patch.object(conversation, "Conversation") as talk, \
                self.assertRaises(KeyboardInterrupt):
            talk.return_value.version = "1"
            talk.return_value.ask.side_effect = [{"p50_us": 5}, KeyboardInterrupt]
            peers.main(words)
        talk.return_value.close.assert_called_once_with()
        entry, = map(json.loads, (folder / "lines").read_text().splitlines())
        self.assertEqual((entry["operation"], entry["p50_us"]), ("barrier", 5))


class ReportTest(unittest.TestCase):
    def test_table(self):
        text = peers_table.text(RUN, figures.rows_of(some_lines()))
        self.assertRegex(text, r"4 KiB +near +70\.4 .*\*")
        self.assertIn(" 3.00 (3.00-3.00) ", text)
        self.assertRegex(text, r"bound/reg")
        self.assertEqual(peers_table.time_text(0.12345), "0.12")
        self.assertEqual(peers_table.time_text(12345), "12345")


READY = ("import json, os, sys, time\nmeet = sys.argv[sys.argv.index('--meet') + 1]\n"
         "def tell(**words):\n"
         "  with open(f'{meet}/answers', 'w') as answers:\n"
         "    answers.write(json.dumps({'rank': int(sys.argv[-1])} | words) + '\\n')\n"
         "tell(pid=os.getpid(), version='fake 1')\n")


class FakeSystem(systems.Mpi):
    """Ranks that become ready and then do what `body` says; started by a shell, as if by a
    launcher."""

    def __init__(self, body, first=""):
        super().__init__("fake", "fake", "", "")
        self.script = first + READY + body

    def start(self, place):
        command = " ".join(f"\"$@\" {rank} &" for rank in range(place.ranks)) + " wait"
        return [systems.Started(["sh", "-c", command, "sh", sys.executable, "-c",
                                 self.script, *place.driver_arguments()])]


class ConversationTest(unittest.TestCase):
    def talk(self, body, first=""):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        place = systems.Place(2, 2, folder, folder)
        return conversation.Conversation(FakeSystem(body, first), place, folder / "log")

    def assert_gone(self, talk):
        for pid in talk.rank_pids + [process.pid for process in talk.processes]:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), pid)
        self.assertFalse(talk.meet.exists())

    def shared_name(self):
        """Returns a name whose file is removed after the test, because other tests look for remains
        of stretto."""
        path = pathlib.Path(f"/dev/shm/peers_test.{os.getpid()}")
        self.addCleanup(path.unlink, missing_ok=True)
        return str(path)

    def fail_and_close(self, talk, pattern, timeout=0.3):
        with self.assertRaisesRegex(conversation.SystemFailed, pattern):
            talk.ask(systems.Variant("barrier", 0), 0.1, timeout)
        talk.close(in_order=False)
        self.assert_gone(talk)

    def answer(self, **words):
        """Returns the result of a line for which rank 1 answers `words`, and rank 0 "ok"."""
        times = dict.fromkeys(conversation.TIMES, 7) | {"flag_ns": [50, 60], "regime": "near"}
        talk = self.talk(f"asked = open(f'{{meet}}/ask.{{sys.argv[-1]}}').readline()\n"
                         f"words = {words!r} if sys.argv[-1] == '1' else {{'answer': 'ok'}}\n"
                         f"tell(**{times!r} | {{'text': asked.strip()}} | words)\ntime.sleep(60)\n")
        self.addCleanup(talk.close, in_order=False)
        return talk.ask(systems.Variant("all_reduce", 8, "huge", True, "ring"), 0.1, 10)

    def test_answers_of_all_ranks_count(self):
        times = self.answer(answer="ok")
        self.assertEqual((times["p50_us"], times["flag_ns"], times["regime"]),
                         (7, [50, 60], "near"))
        self.assertEqual(self.answer(answer="unsupported"),
                         {"error": "unsupported: rank 1: all_reduce 8 0.1 1 huge ring 1"})
        with self.assertRaisesRegex(conversation.SystemFailed, "rank 1: the reason"):
            self.answer(answer="failed", text="the reason")

    def test_a_system_that_hangs_is_ended(self):
        conversation.adopt_orphans()
        deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
        talk = self.talk(deaf)
        self.assertEqual(talk.version, "fake 1")
        self.fail_and_close(talk, "no answer within")

    def test_a_system_that_dies_says_how(self):
        talk = self.talk("time.sleep(0.2)\nprint('the reason')\n")
        self.fail_and_close(talk, "ended with status 0: the reason", timeout=10)

    def test_shared_memory_of_a_killed_rank_is_removed(self):
        conversation.adopt_orphans()
        if not os.access("/dev/shm", os.W_OK):
            self.skipTest("no /dev/shm")
        name = self.shared_name()
        talk = self.talk(f"file = open({name!r}, 'w')\ntime.sleep(60)\n")
        deadline = time.monotonic() + 5
        while not os.path.exists(name) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.fail_and_close(talk, "no answer within")
        self.assertFalse(os.path.exists(name))

    def test_shared_memory_of_a_rank_that_died_is_removed(self):
        if not os.access("/dev/shm", os.W_OK):
            self.skipTest("no /dev/shm")
        name = self.shared_name()
        # The file exists before the parent reads which ranks are ready, and is not used afterwards.
        first = f"file = open({name!r}, 'w')\n"
        talk = self.talk("time.sleep(0.3)\nos._exit(3)\n", first)
        self.fail_and_close(talk, "ended with", timeout=10)
        self.assertFalse(os.path.exists(name))


class DriverTest(unittest.TestCase):
    def test_stretto_and_bounds_from_beginning_to_end(self):
        build = pathlib.Path(os.environ.get("STRETTO_BUILD_DIR", HERE.parent / "build/release"))
        if not (build / "bin/stretto_driver").exists():
            self.skipTest("the drivers are not built")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        run = subprocess.run(
            [sys.executable, HERE / "peers.py", "--build", build, "--peers", folder, "--systems",
             "stretto,copy,bare", "--operations", "all_reduce,barrier,broadcast,all_to_all",
             "--bytes", "8,4096,65536",
             "--repeats", "1", "--seconds", "0.01", "--json", folder / "lines"],
            capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = [json.loads(text) for text in (folder / "lines").read_text().splitlines()]
        # A container may forbid reading another process' memory.
        refused = [entry for entry in lines if "error" in entry]
        self.assertEqual([entry for entry in refused
                          if entry["system"] != "bare" or entry["bytes"] < 65536], [])
        self.assertLessEqual(len(refused), 3)
        # 3 operations on 2 kinds of buffers, one operation in place and out of place, 3 sizes; 2
        # ways to copy for 2 operations; a barrier. Without a library: a meeting for each operation
        # of 8 bytes and for the barrier; each operation of 64 KiB with each kind of buffers,
        # private ones also staged; and two small broadcasts.
        self.assertEqual(len(lines), (3 + 1) * 2 * 3 + 3 * 2 * 2 + 1 + (3 + 1) + 3 * 3 + 2)
        for entry in lines:
            if entry in refused:
                continue
            for key in ("operation", "ranks", "bytes", "dtype", "buffers", "system", "version",
                        "p50_us", "p99_us", "regime", "repeat", "in_place", "settings"):
                self.assertIn(key, entry)
            self.assertGreater(entry["p50_us"], 0)

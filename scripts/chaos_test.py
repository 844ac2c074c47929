# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of scripts/chaos.py: plans follow from seeds, and every broken promise is reported."""

import contextlib
import copy
import dataclasses
import io
import itertools
import math
import unittest
import unittest.mock

import chaos
import chaos_judge
import chaos_kinds
import chaos_misuse
import chaos_plan
from chaos_plan import Anything, Right, Told

TEXT = "all_reduce(sum f32 [17]) #3 on rank 0: lost rank 1 (shm): the process is gone"


def event(rank, name, t, **fields):
    return {"rank": rank, "event": name, "t": t, "pid": 100 + rank, **fields}


def error(rank, t, **fields):
    return event(rank, "error", t, **({"type": "PeerLost", "named": 1, "text": TEXT,
                                       "during": "step", "step": 3} | fields))


def end(signal=None, told_to_end=False, seconds=1.0):
    return {"signal": signal, "told_to_end": told_to_end, "seconds": seconds}


def killed_job():
    """The record of a job of three ranks that keeps all promises: rank 1 was killed at 10 s."""
    events = [event(rank, "joined", 9.0) for rank in range(3)]
    return chaos_judge.Record(events=events + [error(0, 10.1), error(2, 10.2)], fault_s=10.0,
                              ended_s=10.5, ends={0: end(), 1: end("SIGKILL"), 2: end()})


KILLED = {0: (Told(("PeerLost",), 2.0, (1,)),), 1: (Anything(),),
          2: (Told(("PeerLost",), 2.0, (1,)),)}


def shrunk_job():
    record = killed_job()
    for rank in (0, 2):
        record.events += [event(rank, "regrouped", 11.0, size=2), event(rank, "done", 12.0)]
    record.ended_s = 12.1
    return record


SHRUNK = {0: (Right(2, 3.0),), 1: (Anything(),), 2: (Right(2, 3.0),)}


class DrawTest(unittest.TestCase):
    def test_the_same_seed_gives_the_same_plan(self):
        for kind in chaos.KINDS.values():
            for seed in range(50):
                plan = chaos_plan.draw(kind, seed)
                self.assertEqual(plan, chaos_plan.draw(kind, seed))

    def test_seeds_differ(self):
        for kind in chaos.KINDS.values():
            plans = [dataclasses.replace(chaos_plan.draw(kind, seed), seed=0)
                     for seed in range(20)]
            self.assertTrue(any(plan != plans[0] for plan in plans), kind.name)

    def test_every_plan_makes_sense(self):
        for kind in chaos.KINDS.values():
            for seed in range(200):
                plan = chaos_plan.draw(kind, seed)
                self.assertIn(plan.world, kind.worlds)
                self.assertLessEqual(kind.min_ranks, plan.ranks)
                self.assertEqual(len(set(plan.victims)), len(plan.victims))
                self.assertTrue(all(0 <= victim < plan.ranks for victim in plan.victims))
                expectation = kind.expect(plan)
                self.assertEqual(sorted(expectation), list(range(plan.ranks)))
                bound_s = chaos_judge.longest_bound_s(expectation)
                self.assertLess(bound_s, kind.limit_s)
                if not kind.name.startswith("stop-"):
                    self.assertLess(bound_s, plan.timeout_s / 2, "a timeout would be in time")

    def test_a_replayed_case_is_the_same(self):
        for number, (kind, plan) in zip(range(60), chaos.cases(list(chaos.KINDS), 100)):
            options = chaos.parse(plan.replay_command(100, "bbr").split()[2:])
            again_kind, again = next(chaos.cases(options.only, options.seed))
            self.assertEqual((again_kind, again), (kind, plan), number)
            self.assertEqual(options.cases, 1)
            is_shaped = plan.world == "two_hosts"
            self.assertEqual(options.rate, 100 if is_shaped else 0)
            self.assertEqual(options.congestion_control, "bbr" if is_shaped else "cubic")

    def test_kinds_come_in_turn(self):
        names = list(chaos.KINDS)
        drawn = [kind.name for _, (kind, _) in zip(range(2 * len(names)), chaos.cases(names, 1))]
        self.assertEqual(drawn, names * 2)
        seeds = [plan.seed for _, (_, plan) in zip(range(9), chaos.cases(["kill", "kill"], 1))]
        self.assertEqual(len(set(seeds)), 9)

    def test_each_kind_goes_through_its_worlds(self):
        for worlds in (set(chaos_plan.WORLDS), {"shm", "bare", "two_hosts"}, {"tcp"}):
            for kind in chaos.KINDS.values():
                here = set(kind.worlds) & worlds
                drawn = [plan.world for _, plan in itertools.islice(
                    chaos.cases([kind.name], 1, worlds), 2 * len(here))]
                self.assertEqual([set(drawn[:len(here)]), set(drawn[len(here):])], [here, here])

    def test_both_hosts_have_ranks(self):
        plan = chaos_plan.Plan("kill", 1, "two_hosts", 6)
        self.assertEqual([plan.host_of(rank) for rank in range(6)], [0, 0, 0, 1, 1, 1])

    def test_disagreements_are_about_fields_that_the_collective_has(self):
        fields = {(plan.details["field"], plan.details["collective"])
                  for plan in (chaos_plan.draw(chaos_misuse.Disagree(), seed)
                               for seed in range(500))}
        self.assertEqual(fields, {(field, collective)
                                  for field, collectives in chaos_misuse.FIELDS.items()
                                  for collective in collectives})


class JudgeTest(unittest.TestCase):
    def broken(self, change, record=None, expectation=None):
        """Returns the problems reported for a correct job after `change` has modified its
        record."""
        record = record or killed_job()
        expectation = expectation or KILLED
        self.assertEqual(chaos_judge.judge(expectation, record).problems, [])
        changed = copy.deepcopy(record)
        change(changed)
        return "\n".join(chaos_judge.judge(expectation, changed).problems)

    def of_error(self, rank, **fields):
        def change(record):
            record.of_rank(rank, "error")[0].update(fields)
        return self.broken(change)

    def test_the_worst_time_is_that_of_the_last_survivor(self):
        verdict = chaos_judge.judge(KILLED, killed_job())
        self.assertAlmostEqual(verdict.worst_s, 0.2)
        self.assertEqual(verdict.bound_s, 2.0)
        self.assertAlmostEqual(chaos_judge.judge(SHRUNK, shrunk_job()).worst_s, 1.0)
        gone = {rank: (Anything(),) for rank in range(3)}
        self.assertAlmostEqual(chaos_judge.judge(gone, killed_job()).worst_s, 0.5)

    def test_a_survivor_who_hears_nothing(self):
        self.assertIn("rank 2 got no error", self.broken(lambda record: record.events.pop()))

    def test_a_survivor_who_hears_late(self):
        self.assertIn("rank 2 heard of it after 2.50 s, not 2 s", self.of_error(2, t=12.5))

    def test_a_survivor_who_fails_before(self):
        self.assertIn("rank 0 failed 1.00 s before", self.of_error(0, t=9.0))

    def test_another_type(self):
        self.assertIn("rank 0 got Timeout, not PeerLost", self.of_error(0, type="Timeout"))

    def test_another_rank_or_none(self):
        self.assertIn("rank 0 named rank 2, not 1", self.of_error(0, named=2))
        self.assertIn("rank 0 named rank None, not 1", self.of_error(0, named=None))

    def test_texts(self):
        self.assertIn("does not name the operation",
                      self.of_error(0, text="lost rank 1 (tcp): the connection was closed"))
        self.assertIn("number that only the library", self.of_error(0, text=TEXT + " #4026531840"))
        self.assertIn("control characters", self.of_error(0, text=TEXT + "\x1b[31m"))
        self.assertIn("a bug in the library", self.of_error(0, type="InternalError"))
        # The error of a rank that had got further than the rank that told it of the loss.
        early = "rank 1 gave up: rank 1: while setting up the communicator: lost rank 2 (tcp)"
        self.assertEqual(list(chaos_judge.check_text(error(0, 10.1, text=early))), [])

    def test_a_text_that_must_say_something(self):
        told = KILLED | {0: (Told(("PeerLost",), 2.0, (1,), says="the network"),)}
        problems = chaos_judge.judge(told, killed_job()).problems
        self.assertEqual(len(problems), 1)
        self.assertIn('rank 0 does not say "the network"', problems[0])

    def test_wrong_values(self):
        self.assertIn("rank 0 has a wrong value: element 3", self.broken(
            lambda record: record.events.append(event(0, "wrong", 9.5, text="element 3"))))

    def test_a_hang(self):
        self.assertIn("hang", self.broken(lambda record: setattr(record, "hung", True)))

    def test_leavings(self):
        self.assertIn("left behind: process 7", self.broken(
            lambda record: record.leavings.append("process 7 (sleep)")))

    def test_a_signal_that_nobody_sent(self):
        self.assertIn("rank 2 died of SIGABRT", self.broken(
            lambda record: record.ends.update({2: end("SIGABRT")})))
        self.assertEqual("", self.broken(
            lambda record: record.ends.update({2: end("SIGTERM", told_to_end=True)})))

    def test_a_launcher_that_blames_another(self):
        def blame(record):
            record.blamed.append((2, {0, 1, 2}))
            record.ends[2] = end(seconds=0.5)

        self.assertIn("says that rank 2 failed first", self.broken(blame))
        self.assertEqual("", self.broken(lambda record: record.blamed.append((1, {0, 1, 2}))))
        # The launcher of another host has no better information.
        self.assertEqual("", self.broken(lambda record: record.blamed.append((2, {2, 3}))))

    def test_a_launcher_that_lingers(self):
        self.assertIn("the launcher lingered for 9.80 s", self.broken(
            lambda record: setattr(record, "ended_s", 20.0)))
        # Of a job without a sign of life nobody can tell for how long.
        silent = chaos_judge.Record(events=[], ended_s=26000.0)
        self.assertEqual(chaos_judge.judge({0: (Right(),)}, silent).problems,
                         ["rank 0 did not end right"])

    def test_a_fault_that_never_came(self):
        self.assertIn("nothing was done", self.broken(
            lambda record: setattr(record, "fault_s", None)))

    def test_trouble_of_the_driver(self):
        self.assertIn("never said", self.broken(
            lambda record: record.trouble.append("ranks [1] never said \"joined\"")))

    def test_a_job_that_should_end_right(self):
        right = {rank: (Right(),) for rank in range(2)}
        record = chaos_judge.Record(events=[event(0, "done", 1.0), event(1, "done", 1.0)],
                                    ended_s=1.1)
        self.assertIn("rank 1 did not end right", self.broken(
            lambda changed: changed.events.pop(), record, right))
        self.assertIn("rank 0 got PeerLost", self.broken(
            lambda changed: changed.events.append(error(0, 1.0)), record, right))

    def test_a_job_that_should_have_joined_soon(self):
        record = chaos_judge.Record(
            events=[event(0, "joined", 11.0), event(0, "done", 12.0)], fault_s=10.0, ended_s=12.0)
        self.assertIn("rank 0 could go on after 5.00 s, not 3 s", self.broken(
            lambda changed: changed.events[0].update(t=15.0), record, {0: (Right(within_s=3.0),)}))

    def test_shrinking(self):
        def size(record):
            record.of_rank(2, "regrouped")[0]["size"] = 3

        def late(record):
            record.of_rank(0, "regrouped")[0]["t"] = 14.0

        self.assertIn("ended in a group of 3, not 2", self.broken(size, shrunk_job(), SHRUNK))
        self.assertIn("could go on after 4.00 s", self.broken(late, shrunk_job(), SHRUNK))
        self.assertIn("rank 2 did not end right", self.broken(
            lambda record: record.events.pop(), shrunk_job(), SHRUNK))

    def test_one_of_several_outcomes_is_enough(self):
        either = KILLED | {0: (Right(), KILLED[0][0])}
        self.assertEqual(chaos_judge.judge(either, killed_job()).problems, [])


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.report = chaos.Report()
        with contextlib.redirect_stdout(io.StringIO()) as self.said:
            for seed, problems in ((1, []), (2, ["hang"]), (3, [])):
                verdict = chaos_judge.Verdict(problems, seed / 10, 2.0)
                plan = chaos_plan.draw(chaos_kinds.Kill(), seed)
                self.report.add(chaos.Result(plan, verdict, 1.0))

    def test_the_table_counts_and_names_seeds(self):
        lines = self.report.table().splitlines()
        self.assertEqual(lines[1].split(), ["kill", "3", "1", "0.300", "2.0", "2"])
        self.assertEqual(lines[2].split(), ["all", "3", "1"])

    def test_what_the_machine_does_not_allow_has_not_failed(self):
        self.report.add(chaos.LeftOut("cases of limit are left out: no control group"))
        self.assertEqual(len(self.report.failed()), 1)
        self.assertEqual(len(self.report.results), 3)
        self.assertEqual(self.report.left_out.total(), 1)

    def test_a_failure_says_how_to_do_it_again(self):
        self.assertIn("./dev chaos --only kill --seed 2 --cases 1", self.said.getvalue())

    def test_cases_have_no_time_limit_unless_one_is_given(self):
        self.assertEqual(chaos.parse(["--cases", "500"]).minutes, math.inf)
        self.assertEqual(chaos.parse(["--cases", "500", "--minutes", "2"]).minutes, 2)
        self.assertEqual(chaos.parse([]).minutes, 1)

    def run_where_only_shm_is(self, *arguments):
        """Returns the status and the output of the program where only shared memory is usable. No
        job runs."""
        said = io.StringIO()
        with unittest.mock.patch.object(chaos, "usable_worlds", return_value=({"shm"}, [])), \
                unittest.mock.patch.object(chaos, "Runner"), contextlib.redirect_stdout(said):
            return chaos.main(arguments), said.getvalue()

    def test_cases_that_time_did_not_suffice_for_are_counted(self):
        status, said = self.run_where_only_shm_is("--cases", "3", "--minutes", "-1")
        self.assertEqual(status, 0)
        self.assertIn("the time was up after 0 of 3 cases", said)

    def test_no_other_case_is_run_for_one_whose_world_is_lacking(self):
        seed = next(seed for seed in itertools.count(1)
                    if chaos_plan.draw(chaos_kinds.Kill(), seed).world == "ucx")
        replay = ("--only", "kill", "--seed", str(seed), "--cases", "1", "--minutes", "-1")
        with self.assertRaisesRegex(SystemExit, f"seed {seed} of kill needs the world ucx"):
            self.run_where_only_shm_is(*replay)
        self.assertEqual(self.run_where_only_shm_is(*replay, "--world", "shm")[0], 0)

    def test_patience_stretches_bounds_only(self):
        row = chaos.patient(KILLED, 2.0)
        self.assertEqual(row[0][0].within_s, 4.0)
        self.assertEqual(row[1], (Anything(),))

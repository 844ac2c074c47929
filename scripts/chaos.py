#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Starts real jobs, harms them, and checks what becomes of every rank; ./dev chaos calls it.

Each case is drawn from a kind and a seed: who is killed, stopped, cut off, flooded, short of
something or of another opinion, when, and in which world (shared memory, tcp, UCX, two network
namespaces, no launcher). Of every survivor the outcome, the error's type, text and time are
compared with what is promised, and of every job what it leaves behind. Exits 1 if a promise was
broken; what such jobs have said is kept in build/chaos. Kinds come in turn, and each goes through
its worlds in turn. A seed gives the same cases every time, and ./dev check has a fixed one: another
seed tries others.

examples:
  ./dev chaos --minutes 10
  ./dev chaos --minutes 60 --seed $RANDOM             # cases that nobody has tried before
  ./dev chaos --only kill --only shrink --cases 50
  ./dev chaos --only kill --seed 4711 --cases 1       # the same case again
  ./dev chaos --world two_hosts --rate 100 --cases 500    # between hosts, over a shaped link
  ./dev chaos --list
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import chaos_job
import chaos_judge
import chaos_kinds
import chaos_misuse
import chaos_plan
import namespaces

KINDS = {kind.name: kind for kind in chaos_kinds.KINDS + chaos_misuse.KINDS}
ROOT = pathlib.Path(__file__).resolve().parent.parent
FAILURES = ROOT / "build/chaos"


@dataclasses.dataclass
class Result:
    """A case that has been run."""

    plan: chaos_plan.Plan
    verdict: chaos_judge.Verdict
    seconds: float


@dataclasses.dataclass
class LeftOut:
    """A case that this machine cannot run, with a sentence that says why."""

    sentence: str


class Runner:
    """Runs several cases at a time, and keeps the output of those that fail."""

    def __init__(self, bin_dir, patience, megabits_per_second, congestion_control):
        self._congestion_control = congestion_control
        self._megabits_per_second = megabits_per_second
        self._bin = bin_dir
        self._patience = patience
        self._local = threading.local()
        self._networks = []
        self._folder = tempfile.TemporaryDirectory(prefix="stretto-chaos-")

    def close(self):
        for network in self._networks:
            network.remove()
        self._folder.cleanup()

    def run(self, kind, plan):
        began = time.monotonic()
        folder = pathlib.Path(self._folder.name, f"{plan.kind}-{plan.seed}")
        folder.mkdir()
        network = self._network() if plan.world == "two_hosts" else None
        job = chaos_job.Job(plan, self._bin, folder, network)
        left_out = None
        try:
            job.start(kind.prepare(plan, job))
            kind.inject(plan, job)
        except chaos_kinds.CannotRun as reason:
            left_out = LeftOut(f"cases of {plan.kind} are left out: {reason}")
        finally:
            record = job.finish(kind.limit_s * self._patience)
            if network is not None:
                network.heal()
        if left_out is not None:
            shutil.rmtree(folder)
            return left_out
        expectation = patient(kind.expect(plan), self._patience)
        verdict = chaos_judge.judge(expectation, record)
        if verdict.problems:
            self._keep(plan, record, verdict, folder)
        shutil.rmtree(folder)
        return Result(plan, verdict, time.monotonic() - began)

    def _network(self):
        """Returns the network of this thread, which runs its cases one after the other."""
        if not hasattr(self._local, "network"):
            name = f"chaos{threading.get_native_id()}"
            self._local.network = namespaces.Network(name)
            self._networks.append(self._local.network)
            self._local.network.make()
            self._local.network.use_congestion_control(self._congestion_control)
            if self._megabits_per_second:
                self._local.network.shape(1e6 * self._megabits_per_second)
        return self._local.network

    def _keep(self, plan, record, verdict, folder):
        kept = FAILURES / folder.name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for output in folder.glob("output-*.txt"):
            shutil.copy(output, kept)
        (kept / "case.json").write_text(json.dumps(
            {"plan": dataclasses.asdict(plan), "problems": verdict.problems,
             "record": dataclasses.asdict(record)}, indent=1, default=list))


def patient(expectation, factor):
    """Returns the same expectation with longer bounds, for busy machines."""
    return {rank: tuple(dataclasses.replace(expected, within_s=expected.within_s * factor)
                        if getattr(expected, "within_s", None) else expected for expected in row)
            for rank, row in expectation.items()}


def plans(kind, seed, worlds):
    """Yields plans from this seed on, through the worlds of the kind in turn: skips a seed whose
    world has come already in this turn."""
    wanted = set()
    for number in itertools.count(seed):
        wanted = wanted or set(kind.worlds) & worlds
        plan = chaos_plan.draw(kind, number)
        if plan.world in wanted:
            wanted.remove(plan.world)
            yield plan


def cases(names, seed, worlds=frozenset(chaos_plan.WORLDS)):
    """Yields cases of all kinds that have one of these worlds, in turn and without end; the seeds
    of each kind begin with `seed`."""
    kinds = [KINDS[name] for name in dict.fromkeys(names) if set(KINDS[name].worlds) & worlds]
    for turn in zip(*(plans(kind, seed, worlds) for kind in kinds)):
        yield from zip(kinds, turn)


def usable_worlds(bin_dir):
    """Returns the worlds that this machine has, and a sentence for each world that it lacks."""
    worlds, sentences = set(chaos_plan.WORLDS), []
    if not (bin_dir / "libstretto_ucx.so").exists():
        worlds.remove("ucx")
        sentences.append("cases of UCX are left out: this build has no plug-in for it")
    network = namespaces.Network(f"probe{os.getpid()}")
    try:
        network.make()
    except namespaces.NetworkError as error:
        worlds.remove("two_hosts")
        sentences.append(f"cases of two hosts are left out: {error}")
    finally:
        network.remove()
    return worlds, sentences


def run_all(runner, options, report):
    """Runs cases until the time is up or their number is reached."""
    worlds, sentences = usable_worlds(options.bin)
    print(*sentences, sep="\n", end="\n" if sentences else "")
    names, wanted = options.only or list(KINDS), set(options.world or chaos_plan.WORLDS)
    if options.cases == 1:  # Another case would not do.
        for _, plan in itertools.islice(cases(names, options.seed, wanted), 1):
            if plan.world not in worlds:
                sys.exit(f"./dev chaos: seed {plan.seed} of {plan.kind} needs the world "
                         f"{plan.world}, which this machine lacks")
    worlds &= wanted
    if not any(set(KINDS[name].worlds) & worlds for name in names):
        sys.exit("./dev chaos: no such kind of case is for such a world")
    source = cases(names, options.seed, worlds)
    deadline = time.monotonic() + options.minutes * 60
    lock = threading.Lock()
    started = itertools.count()

    def work():
        while True:
            with lock:
                if time.monotonic() > deadline or (
                        options.cases and next(started) >= options.cases):
                    return
                kind, plan = next(source)
            report.add(runner.run(kind, plan))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work) for _ in range(options.jobs)]:
            future.result()


class Report:
    """Counts results, and prints failures at once."""

    def __init__(self, rate=0, congestion_control="cubic"):
        self.results = []
        self.left_out = collections.Counter()
        self._links = (rate, congestion_control)

    def add(self, result):
        if isinstance(result, LeftOut):
            self.left_out[result.sentence] += 1
            return
        self.results.append(result)
        if result.verdict.problems:
            print(f"FAILED {result.plan.kind}: {result.plan.describe()}\n"
                  f"  {result.plan.replay_command(*self._links)}")
            for problem in result.verdict.problems:
                print(f"  - {problem}")
            sys.stdout.flush()

    def failed(self):
        return [result for result in self.results if result.verdict.problems]

    def table(self):
        lines = [f"{'kind':<14} {'cases':>6} {'failed':>6} {'worst s':>8} {'bound s':>8}"
                 "  seeds that failed"]
        for name in KINDS:
            of_kind = [result for result in self.results if result.plan.kind == name]
            if not of_kind:
                continue
            failed = [result.plan.seed for result in of_kind if result.verdict.problems]
            seeds, more = " ".join(map(str, failed[:8])), len(failed) - 8
            bound_s = max(result.verdict.bound_s for result in of_kind)
            bound = f"{bound_s:.1f}" if bound_s else ""
            worst_s = max(result.verdict.worst_s for result in of_kind)
            lines.append(f"{name:<14} {len(of_kind):>6} {len(failed):>6} {worst_s:>8.3f} "
                         f"{bound:>8}  {seeds}{f' and {more} more' * (more > 0)}".rstrip())
        lines.append(f"{'all':<14} {len(self.results):>6} {len(self.failed()):>6}")
        return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float,
                        help="how long [1; with --cases no limit]")
    parser.add_argument("--cases", type=int, default=0, help="at most so many [no limit]")
    parser.add_argument("--seed", type=int, default=1,
                        help="of the first case of each kind [1]")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), metavar="KIND",
                        help="this kind; may be given several times [all]")
    parser.add_argument("--world", action="append", choices=sorted(chaos_plan.WORLDS),
                        help="this world; may be given several times [all]")
    parser.add_argument("--congestion-control", default="cubic", metavar="NAME",
                        help="of two hosts (default: %(default)s); with bbr large messages may "
                        "crawl after an outage, see docs/internals/thread_model.md")
    parser.add_argument("--rate", type=float, default=0, metavar="MBIT/S",
                        help="of the links between hosts [not shaped]")
    parser.add_argument("--list", action="store_true", help="the kinds, and nothing else")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time [2]")
    parser.add_argument("--patience", type=float, default=1.0,
                        help="factor on all bounds, for a machine that is busy [1]")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="the folder of stretto and chaos_rank_program")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if options.minutes is None:
        options.minutes = math.inf if options.cases else 1.0
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.list:
        for kind in KINDS.values():
            print(f"{kind.name:<14} {kind.__doc__.splitlines()[0]}")
        return 0
    report = Report(options.rate, options.congestion_control)
    runner = Runner(options.bin.resolve(), options.patience, options.rate,
                    options.congestion_control)
    try:
        run_all(runner, options, report)
    finally:
        runner.close()
    print(report.table())
    print(*report.left_out, sep="\n", end="\n" if report.left_out else "")
    begun = len(report.results) + report.left_out.total()
    if begun < options.cases:
        print(f"the time was up after {begun} of {options.cases} cases")
    return 1 if report.failed() or (report.left_out and not report.results) else 0


if __name__ == "__main__":
    sys.exit(main())

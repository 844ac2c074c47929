#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What a step of training costs with stretto's DDP and with PyTorch's over Gloo, in turns.

Both train the same models from the same numbers. Each is compared with its own program without
communication, in the same processes; all of them take turns, a fraction of a second each.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

import conversation
import peers
import systems

ROOT = pathlib.Path(__file__).resolve().parent.parent
DRIVERS = ROOT / "bench" / "drivers"
MODELS = {"mlp": "MLP, 4 layers of 1024", "resnet": "ResNet-18", "transformer": "transformer",
          "crumbs": "1000 gradients of 64 bytes"}
# How a step treats the gradients, see bench/drivers/ddp_driver.cc.
MODES = ["none", "meet", "floor", "ddp", "measured", "no_sync"]
OF_GLOO = ["none", "ddp", "no_sync"]
# The column title of each (system, mode).
COLUMNS = {"stretto meet": "meeting only", "stretto floor": "floor", "stretto ddp": "stretto",
           "above floor": "stretto above the floor", "stretto measured": "buckets of measured size",
           "stretto no_sync": "no_sync", "gloo ddp": "DDP over Gloo", "gloo no_sync": "no_sync"}
CRUMBS = 1000  # The number of parameters of this model, see bench/drivers/ddp_models.h.
FEWEST_STEPS = 3
# Otherwise the C library returns the memory of gradients to the kernel after some steps and not
# after others, by chance, and page faults take longer than the measured work.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# A rank without an answer for so long hangs: a turn takes about a second, a start a few seconds.
ANSWER_SECONDS = 300
EXAMPLES = """examples:
  ./dev bench ddp                                three models, 2 processes: two minutes or so
  ./dev bench ddp --ranks 4 --models mlp         more processes than cores
  ./dev bench ddp --ranks 1,2 --models crumbs    what hooks and bookkeeping cost per parameter
  ./dev bench ddp --systems stretto --rounds 15  without Python, more exactly
  ./dev bench ddp --modes floor,ddp              what of the added time no program could spare
  ./dev bench ddp --ranks 2,4 --document docs/measurements/performance.md"""
BEGIN, END = "<!-- begin of ./dev bench ddp -->", "<!-- end of ./dev bench ddp -->"


class RankFailed(Exception):
    """A rank ended or gave no valid answer; the text says which rank, and has its last words."""


@dataclasses.dataclass
class Rank:
    process: subprocess.Popen
    log: pathlib.Path

    def say(self, order):
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail()

    def hear(self):
        # A rank answers each order with one line, so no line waits in the buffer.
        if not select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0]:
            self.fail(f"no answer within {ANSWER_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            self.fail()
        return json.loads(line)

    def fail(self, how="ended"):
        words = self.log.read_text(errors="replace").strip().splitlines()
        raise RankFailed(": ".join([" ".join(self.process.args[:2]), how, *words[-1:]]))


class Job:
    """The ranks of one system. While other systems work, they block on their input."""

    def __init__(self, system, ranks, build, python, small=False, device="cpu", backend=""):
        self.system = system
        self.folder = tempfile.TemporaryDirectory(prefix="stretto_bench_ddp_")
        meet = pathlib.Path(self.folder.name)
        environment = systems.clean_environment(meet) | {"OMP_NUM_THREADS": "1"} | KEPT_MEMORY
        more = ["--device", device, *(["--small"] if small else [])]
        self.ranks = []
        for rank in range(ranks):
            if system == "stretto":
                command = [str(build / "bin" / "ddp_driver"), *more]
                own = {"STRETTO_RANK": str(rank), "STRETTO_SIZE": str(ranks),
                       "STRETTO_RENDEZVOUS": f"file://{meet}/rendezvous"}
                # The models are on device 0.
                own |= {"STRETTO_BACKEND": backend, "STRETTO_DEVICE": "0"} if backend else {}
            else:
                command = [python, str(DRIVERS / "ddp_driver.py"), "--meet", str(meet), "--rank",
                           str(rank), "--ranks", str(ranks), *more]
                own = {}
            log = meet / f"log.{rank}"
            with log.open("w") as errors:
                self.ranks.append(Rank(subprocess.Popen(
                    command, env=environment | own, stdin=subprocess.PIPE, stderr=errors,
                    stdout=subprocess.PIPE, text=True, preexec_fn=conversation._on_its_own), log))
        self.hear()  # Each rank says when it has started.

    def hear(self):
        return [rank.hear() for rank in self.ranks]

    def ask(self, order):
        """Returns an answer of each rank. Afterwards Gloo's ranks are stopped, because its threads
        would wake up."""
        self._signal(signal.SIGCONT)
        for rank in self.ranks:
            rank.say(order)
        answers = self.hear()
        if self.system == "gloo":
            self._signal(signal.SIGSTOP)
        return answers

    def _signal(self, number):
        for rank in self.ranks:
            if rank.process.poll() is None:
                os.kill(rank.process.pid, number)

    def close(self):
        self._signal(signal.SIGCONT)
        for rank in self.ranks:
            rank.process.stdin.close()
        for rank in self.ranks:
            try:
                rank.process.wait(conversation.END_SECONDS)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            rank.process.stdout.close()
        self.folder.cleanup()


def python_with_torch(build):
    """Returns the Python whose torch has the libtorch that this build links, as found by CMake;
    else None.

    STRETTO_TORCH_PYTHON takes precedence. Only with the same libtorch are results equal to the bit.
    """
    if os.environ.get("STRETTO_TORCH_PYTHON"):
        return os.environ["STRETTO_TORCH_PYTHON"]
    cache = build / "CMakeCache.txt"
    match = re.search(r"^STRETTO_PYTHON:\w+=(.+)$",
                      cache.read_text() if cache.exists() else "", re.MULTILINE)
    return match and match[1]


STEPS = {"median": statistics.median, "least": min}  # Which step represents a turn.


def step_of(answers, clock, which="median"):
    """Returns the mean over ranks of each rank's chosen step (`which`)."""
    return statistics.mean(STEPS[which](answer[f"{clock}_us"]) for answer in answers)


def measure_model(jobs, model, arguments):
    """Returns {(system, mode): one figure in microseconds for each round}."""
    turns = [("stretto", mode) for mode in arguments.modes]
    turns += [("gloo", mode) for mode in arguments.modes if mode in OF_GLOO]
    turns = [(system, mode) for system, mode in turns if system in jobs]
    steps = {}
    for system, mode in turns:
        # The first steps allocate memory, and form the buckets anew.
        order = f"train {model} {mode} {arguments.zero}"
        jobs[system].ask(f"{order} 4")
        step_us = step_of(jobs[system].ask(f"{order} {FEWEST_STEPS}"), "wall")
        steps[(system, mode)] = max(FEWEST_STEPS, int(1e6 * arguments.seconds / step_us))
    figures = {turn: [] for turn in turns}
    for round_number in range(arguments.rounds):
        first = round_number % len(turns)
        for system, mode in turns[first:] + turns[:first]:
            order = f"train {model} {mode} {arguments.zero} {steps[(system, mode)]}"
            answers = jobs[system].ask(order)
            figures[(system, mode)].append(step_of(answers, arguments.clock, arguments.step))
    return figures


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def added(figures, system, mode, to="none"):
    """Returns, for each round, the time that `mode` takes more than mode `to`, as a fraction of the
    step without communication."""
    rounds = zip(figures[(system, mode)], figures[(system, to)], figures[(system, "none")])
    return [(mine - other) / base for mine, other, base in rounds]


def line_of(model, ranks, arguments, figures):
    """Returns the results of a model for JSON; times of steps are medians over rounds."""
    parameters = CRUMBS if model == "crumbs" else 0
    line = {"model": model, "ranks": ranks, "device": arguments.device,
            "zero_grad": arguments.zero, "clock": arguments.clock, "step": arguments.step,
            "step_us": {f"{system} {mode}": round(statistics.median(values), 1)
                        for (system, mode), values in figures.items()},
            "added": {f"{system} {mode}": spread(added(figures, system, mode))
                      for system, mode in figures if mode != "none"}}
    if ("stretto", "ddp") in figures and ("stretto", "floor") in figures:
        line["added"]["above floor"] = spread(added(figures, "stretto", "ddp", "floor"))
    if parameters:
        # The time above the floor is that of stretto's hooks and bookkeeping: in the floor mode
        # ranks also meet and wait for each other.
        pairs = {f"{system} {mode}": (mode, system, "none")
                 for system, mode in figures if mode != "none"}
        if "above floor" in line["added"]:
            pairs["stretto above the floor"] = ("ddp", "stretto", "floor")
        line["ns_per_parameter"] = {
            name: spread([1000 * (mine - base) / parameters for mine, base in
                          zip(figures[(system, mode)], figures[(system, to)])])
            for name, (mode, system, to) in pairs.items()}
    return line


def percent(values):
    if values is None:
        return "-"
    return (f"{100 * values['median']:.1f} % ({100 * values['least']:.1f} to "
            f"{100 * values['most']:.1f})")


def table(lines):
    """Returns Markdown: what each mode adds to a step, and stretto's cost as a fraction of
    Gloo's."""
    columns = [key for key in COLUMNS if any(key in line["added"] for line in lines)]
    titles = ["model", "processes", *(COLUMNS[key] for key in columns), "stretto's part of Gloo's"]
    rows, said = [], []
    for line in lines:
        cells = [percent(line["added"].get(column)) for column in columns]
        part = "-"
        if {"gloo ddp", "stretto ddp"} <= line["added"].keys():
            steps = line["step_us"]
            own, gloos = (steps[f"{system} ddp"] - steps[f"{system} none"]
                          for system in ("stretto", "gloo"))
            part = f"{own / gloos:.2f}" if own > 0 and gloos > 0 else "-"
        rows.append([MODELS[line["model"]], str(line["ranks"]), *cells, part])
        for name, values in line.get("ns_per_parameter", {}).items():
            said.append(f"{MODELS[line['model']]}, {line['ranks']} processes, gradients set to "
                        f"{line['zero_grad']}: {name} adds {values['median']:.0f} ns per parameter "
                        f"and step ({values['least']:.0f} to {values['most']:.0f}).")
    return "\n\n".join([peers.markdown(titles, rows), *said])


def section(text, words, run):
    """Returns the text of a document's section, which is between two comments."""
    command = shlex.join(["./dev", "bench", "ddp", *peers.without_files(words)])
    load = run["machine"]["load_before"]
    busy = (f"While others used {load:.1f} of the cores, so ranges are wide. "
            if load > peers.BUSY_LOAD else "")
    clock = " Times are those of all threads of a rank." if run["clock"] == "cpu" else ""
    clock += " Of each turn the least step counts." if run["step"] == "least" else ""
    return (f"`{command}`, commit {run['commit']}, {run['date']}, "
            f"{run['machine']['cores']} cores. {busy}Medians of {run['rounds']} rounds, and the "
            f"least and the most of them.{clock}\n\n{text}\n")


def parse_arguments(words):
    parser = argparse.ArgumentParser(
        prog="./dev bench ddp", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2", metavar="N[,N]", help="processes [2]")
    parser.add_argument("--models", type=peers.list_of(MODELS), metavar="M[,M]",
                        default=["mlp", "resnet", "transformer"],
                        help=f"of {', '.join(MODELS)}; default: the first three")
    parser.add_argument("--systems", type=peers.list_of(["stretto", "gloo"]), metavar="S[,S]",
                        default=["stretto", "gloo"], help="of stretto, gloo; default: both")
    parser.add_argument("--modes", type=peers.list_of(MODES), metavar="M[,M]", default=MODES,
                        help="none: without communication, with which the others are compared; "
                        "meet: the ranks meet once a step; floor: they meet, add up the bytes of "
                        "their gradients with plain loops, and meet; ddp; measured: with buckets "
                        "of measured_bucket_bytes(); no_sync. Gloo has none, ddp and no_sync. "
                        "Default: all")
    parser.add_argument("--device", default="cpu", metavar="NAME",
                        help="where the models are; all ranks share it [cpu]")
    parser.add_argument("--backend", default="", metavar="NAME",
                        help="of stretto's communicator, for a device: nccl or cuda [stretto]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each [5]")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each turn [0.7]")
    parser.add_argument("--zero", choices=["none", "zero"], default="none",
                        help="what zero_grad() does: set to none, or fill with zeros [none]")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: the time of all threads of a rank, the better one for what a "
                        "step does beside waiting where others use the cores [wall]")
    parser.add_argument("--step", choices=STEPS, default="median",
                        help="which step of a turn counts; least: the one that others have "
                        "disturbed the least [median]")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="an object a line")
    parser.add_argument("--document", type=pathlib.Path, metavar="FILE",
                        help="put the table into this page, between its comments")
    peers.add_build(parser)
    arguments = parser.parse_args(words)
    try:
        arguments.ranks = [int(word) for word in arguments.ranks.split(",")]
    except ValueError:
        parser.error("--ranks: write 2 or 2,4")
    if "none" not in arguments.modes:
        arguments.modes = ["none", *arguments.modes]
    arguments.build = arguments.build.resolve()
    return arguments


def measure(arguments, ranks, python):
    """Yields one result per model."""
    jobs = {}
    try:
        for system in arguments.systems:
            jobs[system] = Job(system, ranks, arguments.build, python, device=arguments.device,
                               backend=arguments.backend)
        for model in arguments.models:
            yield line_of(model, ranks, arguments, measure_model(jobs, model, arguments))
            print(f"  {MODELS[model]}, {ranks} processes: done", file=sys.stderr, flush=True)
    finally:
        for job in jobs.values():
            job.close()


def main(words):
    arguments = parse_arguments(words)
    python = python_with_torch(arguments.build)
    if "gloo" in arguments.systems and python is None:
        print("  without Gloo: no Python has the libtorch of this build; STRETTO_TORCH_PYTHON "
              "names one", file=sys.stderr)
        arguments.systems.remove("gloo")
    load = peers.cores_in_use()
    peers.warn_if_busy(load)
    run = {"machine": peers.machine_of(len(os.sched_getaffinity(0))),
           "commit": peers.commit_of(), "rounds": arguments.rounds, "clock": arguments.clock,
           "step": arguments.step, "date": peers.today()}
    run["machine"]["load_before"] = round(load, 2)
    lines = []
    try:
        for ranks in arguments.ranks:
            for line in measure(arguments, ranks, python):
                lines.append(line | run)
    finally:
        peers.write_lines(arguments.json, lines)
    text = table(lines)
    print(text)
    if arguments.document:
        peers.put_into(arguments.document, BEGIN, END, section(text, words, run).strip())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RankFailed as failure:
        print(f"./dev bench ddp: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

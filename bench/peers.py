#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares stretto with other libraries in one run, line by line in turns.

./dev bench peers installs and compiles them first; docs/measurements/peers.md says how it measures.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import conversation
import figures
import peers_table
import systems

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A system that keeps failing is started at most this often.
MAX_STARTS = 3
# Above this load, other programs use the cores and the figures are not reliable.
BUSY_LOAD = 0.5
NOT_BY_DEFAULT = {"stretto-tcp", "stretto-staged"}
# A slow system that takes so many times as long as the best of its family is not repeated: it
# cannot become the best, and would take most of the run's time.
HOPELESS_FACTOR = 3
HOPELESS_FROM_US = 10_000


def size_of(text):
    match = re.fullmatch(r"(\d+)\s*([kKmMgG]?)(?:i?[bB])?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 8, 64K, 16M")
    return int(match.group(1)) * 1024 ** " kmg".index(match.group(2).lower() or " ")


def list_of(choices):
    def parse(text):
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if word not in choices:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(choices)}")
        return words
    return parse


def sizes_of(text):
    return [size_of(word) for word in text.split(",") if word.strip()]


def parse_arguments(words):
    parser = argparse.ArgumentParser(
        prog="./dev bench peers", description=__doc__.splitlines()[0],
        epilog="example: ./dev bench peers --operations all_reduce --bytes 8,4K,1M")
    names = list(systems.all_systems())
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--operations", type=list_of(systems.OPERATIONS),
                        default=systems.OPERATIONS, help="default: all")
    parser.add_argument("--bytes", type=sizes_of, metavar="B[,B]",
                        default="8,256,4K,32K,64K,256K,1M,4M,16M,64M,256M",
                        help="sizes of the larger side, as in 8,64K,16M")
    parser.add_argument("--buffers", type=list_of(figures.KINDS), default=figures.KINDS,
                        help="of stretto: registered, private, huge (private in huge pages); the "
                        "others use private and huge")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.25, help="of samples for each line")
    parser.add_argument("--timeout", type=float, default=30, metavar="SECONDS",
                        help="after which a line counts as hung (default: 30)")
    parser.add_argument("--systems", type=list_of(names), default=None,
                        help=f"of {', '.join(names)}; default: all that can run here, without "
                        f"{', '.join(sorted(NOT_BY_DEFAULT))}")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="an object a line")
    add_places(parser)
    arguments = parser.parse_args(words)
    arguments.build, arguments.peers = arguments.build.resolve(), arguments.peers.resolve()
    if arguments.ranks < 2:
        parser.error("--ranks: at least 2 are needed to compare anything")
    return arguments


def real_size(operation, size, ranks):
    """Rounds a size so that shares have at least one element and are equal on all ranks."""
    unit = systems.ELEMENT_BYTES
    if operation in ("reduce_scatter", "all_gather", "all_to_all"):
        unit *= ranks
    return max(unit, size // unit * unit)


def plan_of(arguments):
    """Returns (operation, size) of every row, in the order of measurement."""
    rows = []
    for operation in arguments.operations:
        sizes = [0] if operation == "barrier" else arguments.bytes
        for size in sizes:
            row = (operation, real_size(operation, size, arguments.ranks) if size else 0)
            if row not in rows:
                rows.append(row)
    return rows


class Progress:
    """One changing line on a terminal; elsewhere one line per row."""

    def __init__(self, total):
        self.total = total
        self.done = 0
        self.begin = time.monotonic()
        self.live = sys.stderr.isatty()

    def show(self, text):
        if not self.live:
            return
        share = self.done / max(1, self.total)
        spent = time.monotonic() - self.begin
        left = f"{spent / share - spent:.0f} s left" if self.done > 3 else ""
        print(f"\r\033[K  [{'#' * int(24 * share):24}] {100 * share:3.0f} %  {text}  {left}",
              end="", file=sys.stderr, flush=True)

    def row(self, text):
        if not self.live:
            spent = time.monotonic() - self.begin
            print(f"  {text}: {self.done} of {self.total} lines, {spent:.0f} s", file=sys.stderr,
                  flush=True)

    def clear(self):
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Contest:
    """All systems at the same time; each sleeps while another is measured."""

    def __init__(self, arguments, chosen, place):
        self.arguments = arguments
        self.place = place
        self.systems = chosen
        self.running = {}
        self.starts = {system.name: 0 for system in chosen}
        self.notes = {}  # By name of the system: the problems with it.
        self.too_slow = {}  # (name, operation): sizes from this one on are not measured.
        self.lines = []
        self.own_version = f"stretto {commit_of()}"
        self.logs = arguments.peers / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def note(self, system, text):
        self.notes.setdefault(system.name, [])
        if text not in self.notes[system.name]:
            self.notes[system.name].append(text)

    def conversation_with(self, system):
        """Returns the running system, started if need be; None if it cannot start."""
        if system.name in self.running:
            return self.running[system.name]
        if self.starts[system.name] >= MAX_STARTS:
            return None
        self.starts[system.name] += 1
        try:
            log = self.logs / f"{system.name}.log"
            self.running[system.name] = conversation.Conversation(system, self.place, log)
        except conversation.SystemFailed as failure:
            self.note(system, str(failure))
            self.starts[system.name] = MAX_STARTS
            return None
        return self.running[system.name]

    def measure(self, system, operation, variant, repeat):
        line = {"operation": operation, "ranks": self.place.ranks, "bytes": variant.bytes,
                "dtype": "f32", "buffers": variant.buffers, "in_place": variant.in_place,
                "algorithm": variant.algorithm, "system": system.name, "family": system.family,
                "version": "", "settings": system.settings(self.place), "repeat": repeat}
        self.lines.append(line | self._answer(system, operation, variant))

    def _answer(self, system, operation, variant):
        """Returns the fields of a line that come from the answer."""
        if variant.bytes >= self.too_slow.get((system.name, operation), float("inf")):
            return {"error": "skipped: it did not answer in time before"}
        talk = self.conversation_with(system)
        if talk is None:
            return {"error": "not running: " + "; ".join(self.notes.get(system.name, []))}
        answer = {"version": self.own_version if system.family == "stretto" else talk.version}
        try:
            answer |= talk.ask(variant, self.arguments.seconds, self.arguments.timeout)
        except conversation.SystemFailed as failure:
            answer["error"] = str(failure)
            if isinstance(failure, conversation.NoAnswer):
                self.too_slow[(system.name, operation)] = variant.bytes
            where = f"{operation} of {figures.size_text(variant.bytes)}"
            self.note(system, f"{where}: {failure}")
            self.running.pop(system.name).close(in_order=False)
        if answer.get("error", "").startswith("wrong"):
            self.note(system, f"{operation} of {variant.bytes} B, {variant.buffers}: "
                      f"{answer['error']}")
        return answer

    def hopeless(self, system, variant):
        """Whether the first repeat shows that further ones are pointless."""
        rounds = [line for line in self.lines if "p50_us" in line and line["repeat"] == 0
                  and line["operation"] == variant.operation and line["bytes"] == variant.bytes
                  and line["family"] == system.family]
        own = [line for line in rounds if line["system"] == system.name
               and line["buffers"] == variant.buffers and line["in_place"] == variant.in_place
               and line["algorithm"] == variant.algorithm]
        if not own or own[0]["p50_us"] < HOPELESS_FROM_US:
            return False
        same = [line["p50_us"] for line in rounds if line["regime"] == own[0]["regime"]]
        return own[0]["p50_us"] > HOPELESS_FACTOR * min(same)

    def run(self, before_round=lambda operation, size, repeat: None):
        rows = plan_of(self.arguments)
        asked = [(system, operation, variant) for operation, size in rows
                 for system in self.systems
                 for variant in system.variants(operation, size, self.arguments.buffers)]
        progress = Progress(len(asked) * self.arguments.repeats)
        for system in self.systems:
            progress.show(f"starting {system.title}")
            self.conversation_with(system)
        for operation, size in rows:
            for repeat in range(self.arguments.repeats):
                before_round(operation, size, repeat)
                self._round(operation, size, repeat, progress)
            progress.row(f"{operation} {figures.size_text(size) if size else ''}".rstrip())
        progress.clear()

    def _round(self, operation, size, repeat, progress):
        """Measures every system once for each kind of buffers; each round begins with another
        system."""
        turn = repeat % len(self.systems)
        order = self.systems[turn:] + self.systems[:turn]
        for kind in figures.KINDS:
            for system in order:
                for variant in system.variants(operation, size, self.arguments.buffers):
                    if variant.buffers != kind:
                        continue
                    progress.show(f"{operation} {figures.size_text(size)} {kind} {system.name}")
                    progress.done += 1
                    if system.family not in ("stretto", "bare") and self.hopeless(system, variant):
                        continue
                    self.measure(system, operation, variant, repeat)

    def close(self):
        for talk in self.running.values():
            talk.close()
        self.running = {}


def first_line(path, pattern):
    with contextlib.suppress(OSError):
        for line in pathlib.Path(path).read_text().splitlines():
            if match := re.search(pattern, line):
                return match.group(1)
    return ""


def machine_of(cores):
    """Returns what affects the figures, and nothing that identifies the machine."""
    memory = int(first_line("/proc/meminfo", r"MemTotal:\s+(\d+)") or 0)
    huge_pages = first_line("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]")
    return {"cpu": first_line("/proc/cpuinfo", r"model name\s*:\s*(.*)") or platform.machine(),
            "l3": first_line("/sys/devices/system/cpu/cpu0/cache/index3/size", r"(.*)"),
            "cores": cores, "memory_gib": round(memory / 1024 / 1024),
            "kernel": platform.release().split("-")[0], "huge_pages": huge_pages or "unknown"}


def commit_of():
    """Returns the measured commit, with a plus if files differ from it."""
    if shutil.which("git") is None:
        return "unknown"

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode != 0:
        return "unknown"
    # Changes of documents do not change the measured program.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs",
                  ":!README.md").stdout.strip()
    return head.stdout.strip() + ("+" if changed else "")


def without_files(words):
    """Returns a command line without the options that name files and folders, which change no
    figure."""
    kept, skip = [], False
    for word in words:
        is_file = word in ("--json", "--page", "--document", "--build", "--peers")
        if not (skip or is_file or word.startswith("--json=")):
            kept.append(word)
        skip = is_file
    return kept


def markdown(titles, rows):
    """Returns a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def put_into(path, begin, end, text):
    """Replaces the text between two lines of a page."""
    head, found, rest = path.read_text().partition(begin)
    _, also_found, tail = rest.partition(end)
    if not found or not also_found:
        raise SystemExit(f"{path} has no lines '{begin}' and '{end}'")
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def write_lines(path, lines):
    """Writes one object per line, if `path` names a file."""
    if path:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def add_build(parser):
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release",
                        metavar="FOLDER", help="build folder of stretto")


def add_places(parser):
    add_build(parser)
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build" / "peers",
                        metavar="FOLDER", help="where the peers are installed")


def cores_in_use(seconds=1.0):
    """Returns the number of cores that others keep busy while this function waits; 0 if unknown."""
    def busy_ticks():
        words = first_line("/proc/stat", r"cpu\s+(.*)").split()
        # User, nice, system, interrupts and soft interrupts: the time that is neither idle nor
        # waiting.
        return sum(int(word) for word in words[:3] + words[5:7])
    before = busy_ticks()
    time.sleep(seconds)
    return (busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def warn_if_busy(load):
    if load > BUSY_LOAD:
        print(f"  Before the run something else used {load:.1f} cores, so do not trust these "
              "figures.", file=sys.stderr)


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def versions_of(lines):
    return {line["system"]: line["version"] for line in lines if line["version"]}


def run_of(words, place, chosen, contest):
    versions = versions_of(contest.lines)
    return {"machine": machine_of(place.cores), "commit": commit_of(),
            "command": shlex.join(["./dev", "bench", "peers", *without_files(words)]),
            "date": today(),
            "systems": [{"name": system.name, "version": versions.get(system.name, ""),
                         "settings": system.settings(place),
                         "notes": contest.notes.get(system.name, [])} for system in chosen]}


def choose(arguments, place):
    """Returns the systems to compare, and the reasons why the others are missing."""
    every = systems.all_systems()
    names = arguments.systems or [name for name in every if name not in NOT_BY_DEFAULT]
    reasons = {name: every[name].missing(place) for name in names}
    chosen = [every[name] for name in names if not reasons[name]]
    return chosen, {name: reason for name, reason in reasons.items() if reason}


def main(words):
    arguments = parse_arguments(words)
    cores = len(os.sched_getaffinity(0))
    place = systems.Place(arguments.ranks, cores, arguments.build, arguments.peers)
    chosen, missing = choose(arguments, place)
    for name, reason in missing.items():
        print(f"  without {name}: {reason}")
    if not chosen:
        print("nothing to measure", file=sys.stderr)
        return 2
    # Exits by an exception, so that all started processes are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    conversation.adopt_orphans()
    conversation.remove_remains()
    load = cores_in_use()
    warn_if_busy(load)
    with contextlib.closing(Contest(arguments, chosen, place)) as contest:
        try:
            contest.run()
        finally:  # Keeps the measurements after an interrupt.
            write_lines(arguments.json, contest.lines)
    run = run_of(words, place, chosen, contest)
    warn_if_busy(load)
    rows = figures.rows_of(contest.lines)
    print(peers_table.text(run, rows))
    wrong = [line for line in contest.lines if line.get("error", "").startswith("wrong")]
    ours = [line for line in contest.lines if line["family"] == "stretto" and "error" in line
            and not line["error"].startswith("unsupported")]
    return 1 if wrong or ours else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Starts a system under measurement, asks it to measure lines, and removes all its remains."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import systems

# The layout of tools/bench/board.h.
PAGE_BYTES = 4096
RANK_BYTES = 8 * 16384 + 4  # Its results, and its process ID.
START_SECONDS = 30
END_SECONDS = 5
TIMES = ("p50_us", "p99_us", "max_us", "min_us", "samples", "batched", "flag_ns", "regime")

FOLDER_PREFIX = "stretto_bench_"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class SystemFailed(Exception):
    """A system did not do what it was asked; the text says what happened, in a few words."""


class NoAnswer(SystemFailed):
    """The system is alive, but has not answered in time."""


def adopt_orphans():
    """Makes orphans children of this process: ranks whose launcher dies can then be ended here."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _on_its_own():
    """Runs in a child process: gives it its own process group, and ends it when the parent ends.

    It gets no session of its own: Linux divides processors among sessions first, so ranks of
    different sessions on one core could not yield to each other.
    """
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def make_board(ranks, cores):
    """Creates an anonymous file in which ranks meet (see tools/bench/board.h); returns its
    descriptor."""
    descriptor = os.memfd_create("stretto_bench_board")
    os.ftruncate(descriptor, PAGE_BYTES + RANK_BYTES * ranks)
    os.pwrite(descriptor, struct.pack("<8sIII", b"STRBOARD", 3, ranks, cores), 0)
    return descriptor


def parent_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def descendants(roots):
    """Returns the living processes among `roots` and all their descendants."""
    parents = {int(entry): parent_of(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    found = {pid for pid in roots if parents.get(pid)}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def shared_files(pid):
    """Returns the files in /dev/shm that a process has mapped or opened."""
    found = set()
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            if match := re.search(r"/dev/shm/\S+", line):
                found.add(match.group())
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("/dev/shm/"):
                    found.add(target.split(" ")[0])
    return found


def remove_files(paths):
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_remains():
    """Removes the folders of killed runs, and the files that their ranks left in /dev/shm."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*_*"):
        pid = folder.name[len(FOLDER_PREFIX):].split("_")[0]
        if not pid.isdigit() or parent_of(pid) or folder.stat().st_uid != os.geteuid():
            continue
        with contextlib.suppress(OSError):
            names = (folder / "shared").read_text().splitlines()
            remove_files(name for name in names if name.startswith("/dev/shm/"))
        shutil.rmtree(folder, ignore_errors=True)


class Conversation:
    """One running system. Only one thread may use it."""

    def __init__(self, system, place, log_path):
        self.system = system
        self.version = ""
        self.meet = pathlib.Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}_"))
        self.board = make_board(place.ranks, place.cores)
        self.place = systems.dataclasses.replace(
            place, board=f"/proc/{os.getpid()}/fd/{self.board}", meet=self.meet)
        self.log_path = log_path
        self.processes = []
        self.rank_pids = []
        self.pipes = []  # One pipe per rank, for requests, and last the one for answers.
        self.heard = b""  # The incomplete last line of the answers.
        self.shared = set()  # Files in /dev/shm that its ranks have used.
        try:
            self._start()
        except BaseException:
            self.close(in_order=False)
            raise

    def _start(self):
        for name in [f"ask.{rank}" for rank in range(self.place.ranks)] + ["answers"]:
            os.mkfifo(self.meet / name)
            # Open for both, so that opening does not block; ranks read the end when this process
            # ends.
            self.pipes.append(os.open(self.meet / name, os.O_RDWR))
        environment = systems.clean_environment(self.meet)
        with self.log_path.open("w") as log:
            for started in self.system.start(self.place):
                self.processes.append(subprocess.Popen(
                    started.command, env=environment | started.environment, stdout=log,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.meet,
                    preexec_fn=_on_its_own))
        came = self._answers(START_SECONDS, f"did not start in {START_SECONDS} s")
        self.rank_pids = [answer["pid"] for answer in came]
        self.version = came[0]["version"]
        self._see_shared_files(self.rank_pids)
        self._signal_ranks(signal.SIGSTOP)

    def _last_words(self):
        lines = [line.strip() for line in self.log_path.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if re.search(r"[a-zA-Z]", line)]
        return f": {lines[-1][:160]}" if lines else ""

    def _expect_alive(self):
        for process in self.processes:
            status = process.poll()
            if status is not None:
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                raise SystemFailed(f"ended {how}{self._last_words()}")

    def _see_shared_files(self, pids):
        """Remembers the files of these processes: a killed rank cannot be asked, and leaves them
        behind."""
        found = set().union(*(shared_files(pid) for pid in pids)) - self.shared
        self.shared |= found
        if found:
            # A later run reads this if this process is killed.
            (self.meet / "shared").write_text("\n".join(self.shared))

    def _signal_ranks(self, number):
        for pid in self.rank_pids if self.system.is_restless else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ask(self, variant, seconds, timeout_seconds):
        """Measures a line and returns a dict. After SystemFailed, the system can measure nothing
        more."""
        self._signal_ranks(signal.SIGCONT)
        times = self._ask(variant, seconds, timeout_seconds)
        self._signal_ranks(signal.SIGSTOP)
        self._see_shared_files(self.rank_pids)
        return times

    def _answers(self, seconds, otherwise):
        """Returns one object per rank, in their order; raises NoAnswer(`otherwise`) after
        `seconds`."""
        deadline = time.monotonic() + seconds
        answers = {}
        while len(answers) < self.place.ranks:
            # This process sleeps while the ranks work.
            readable, _, _ = select.select([self.pipes[-1]], [], [], 0.5)
            if readable:
                *lines, self.heard = (self.heard + os.read(self.pipes[-1], 65536)).split(b"\n")
                answers |= {answer["rank"]: answer for answer in map(json.loads, lines)}
                continue
            self._expect_alive()
            if time.monotonic() > deadline:
                raise NoAnswer(otherwise + self._last_words())
        return [answers[rank] for rank in range(self.place.ranks)]

    def _tell(self, line):
        for pipe in self.pipes[:-1]:
            os.write(pipe, line.encode() + b"\n")

    def _ask(self, variant, seconds, timeout_seconds):
        self._tell(f"{variant.operation} {variant.bytes} {seconds} {int(variant.in_place)} "
                   f"{variant.buffers} {variant.algorithm or '-'} {variant.at_once}")
        answers = self._answers(timeout_seconds, f"no answer within {timeout_seconds:g} s")
        for answer in answers:
            if answer["answer"] == "failed":
                raise SystemFailed(f"rank {answer['rank']}: {answer['text']}{self._last_words()}")
        for answer in answers:
            if answer["answer"] != "ok":
                return {"error": f"{answer['answer']}: rank {answer['rank']}: {answer['text']}"}
        times = {name: answers[0][name] for name in TIMES}
        times["flag_ns"] = [round(value, 1) for value in times["flag_ns"]]
        return times

    def _quit(self):
        self._signal_ranks(signal.SIGCONT)
        self._tell("quit")
        deadline = time.monotonic() + END_SECONDS
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))

    def _kill(self):
        """Ends all remaining processes: first SIGTERM, so that launchers clean up behind their
        ranks."""
        family = descendants([process.pid for process in self.processes] + self.rank_pids)
        self._see_shared_files(family)
        for stop in (signal.SIGTERM, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, stop)
            deadline = time.monotonic() + 1
            while any(self._runs(pid) for pid in family) and time.monotonic() < deadline:
                time.sleep(0.02)
        remove_files(self.shared)

    def _runs(self, pid):
        """Whether the process exists and is not a zombie; reaps it if it is our child."""
        for process in self.processes:
            if process.pid == pid:
                return process.poll() is None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return parent_of(pid) != 0

    def close(self, in_order=True):
        if in_order:
            self._quit()
        self._kill()
        for descriptor in [*self.pipes, self.board]:
            os.close(descriptor)
        shutil.rmtree(self.meet, ignore_errors=True)

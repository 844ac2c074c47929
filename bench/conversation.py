# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Starts a system under measurement, asks it for lines, and leaves nothing of it behind."""

import contextlib
import ctypes
import mmap
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
RESULTS_BYTES = 8 * (16384 + 1024)
REQUEST_OFFSET = 384
ANSWERS = ["ok", "wrong", "failed", "unsupported"]
START_SECONDS = 30
END_SECONDS = 5
NEAR_NANOSECONDS = 110

FOLDER_PREFIX = "stretto_bench_"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class SystemFailed(Exception):
    """A system did not do what it was asked; the text says what happened, in a few words."""


class NoAnswer(SystemFailed):
    """It is alive, but has not answered in time."""


def adopt_orphans():
    """Ranks whose launcher dies become children of this process, which then can end them."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _on_its_own():
    """In a group of processes of its own, and gone when the parent is.

    Not in a session of its own: Linux shares out the processors by sessions first, so ranks in
    different ones that take turns on a core cannot yield to each other.
    """
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def regime_of(before_ns, after_ns, oversubscribed):
    """Where the cores of ranks 0 and 1 were to each other; as in tools/bench/measure.h."""
    if oversubscribed:
        return "oversubscribed"
    if before_ns <= 0 or after_ns <= 0:
        return "unknown"
    near = [latency < NEAR_NANOSECONDS for latency in (before_ns, after_ns)]
    if near[0] != near[1]:
        return "mixed"
    return "near" if near[0] else "far"


class Board:
    """The parent's side of tools/bench/board.h, in a file without a name."""

    def __init__(self, ranks, cores):
        self.ranks = ranks
        self.descriptor = os.memfd_create("stretto_bench_board")
        size = PAGE_BYTES * (1 + ranks) + RESULTS_BYTES * ranks
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        struct.pack_into("<8sIII", self.memory, 0, b"STRBOARD", 1, ranks, cores)
        self.sequence = 0

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def post(self, variant, seconds):
        struct.pack_into("<QdIIII32s16s16s16s64s", self.memory, REQUEST_OFFSET + 8, variant.bytes,
                         seconds, variant.in_place, 1, 1, 0, variant.operation.encode(), b"f32",
                         b"sum", variant.buffers.encode(), variant.algorithm.encode())
        self.sequence += 1
        struct.pack_into("<Q", self.memory, REQUEST_OFFSET, self.sequence)

    def all_answered(self):
        return all(struct.unpack_from("<Q", self.memory, PAGE_BYTES * (1 + rank))[0]
                   == self.sequence for rank in range(self.ranks))

    def answer(self):
        """The worst answer of any rank, and what it says."""
        for rank in range(self.ranks):
            page = PAGE_BYTES * (1 + rank)
            word = ANSWERS[struct.unpack_from("<I", self.memory, page + 8)[0]]
            if word != "ok":
                text = self.memory[page + 64:page + 576].split(b"\0")[0].decode(errors="replace")
                return word, f"rank {rank}: {text}"
        return "ok", ""

    def times(self, oversubscribed):
        names = ["p50_us", "p99_us", "max_us", "min_us", "samples", "batched"]
        values = struct.unpack_from("<ddddIIdd", self.memory, 576)
        times = dict(zip(names, values))
        times["batched"] = bool(times["batched"])
        times["regime"] = regime_of(values[6], values[7], oversubscribed)
        times["flag_ns"] = [round(values[6], 1), round(values[7], 1)]
        return times

    def close(self):
        self.memory.close()
        os.close(self.descriptor)


def parent_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def descendants(roots):
    """All living processes below `roots`, and these themselves."""
    parents = {int(entry): parent_of(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    found = {pid for pid in roots if parents.get(pid)}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def shared_files(pid):
    """The files in /dev/shm that a process has mapped or opened."""
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
    """Of runs that were killed: their folders, and what their ranks left in /dev/shm."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*_*"):
        pid = folder.name[len(FOLDER_PREFIX):].split("_")[0]
        if not pid.isdigit() or parent_of(pid) or folder.stat().st_uid != os.geteuid():
            continue
        with contextlib.suppress(OSError):
            names = (folder / "shared").read_text().splitlines()
            remove_files(name for name in names if name.startswith("/dev/shm/"))
        shutil.rmtree(folder, ignore_errors=True)


class Conversation:
    """One running system. Not for several threads."""

    def __init__(self, system, place, log_path):
        self.system = system
        self.version = ""
        self.meet = pathlib.Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}_"))
        self.board = Board(place.ranks, place.cores)
        self.place = systems.dataclasses.replace(place, board=self.board.path, meet=self.meet)
        self.log_path = log_path
        self.processes = []
        self.rank_pids = []
        self.bells = []
        self.idle = None
        self.shared = set()  # Files in /dev/shm that its ranks have had.
        try:
            self._start()
        except BaseException:
            self.close(in_order=False)
            raise

    def _start(self):
        for rank in range(self.place.ranks):
            path = self.meet / f"bell.{rank}"
            os.mkfifo(path)
            # Both ways, so that opening does not wait; ranks see its end when this process ends.
            self.bells.append(os.open(path, os.O_RDWR))
        os.mkfifo(self.meet / "idle")
        self.idle = os.open(self.meet / "idle", os.O_RDONLY | os.O_NONBLOCK)
        environment = systems.clean_environment(self.meet)
        with self.log_path.open("w") as log:
            for started in self.system.start(self.place):
                self.processes.append(subprocess.Popen(
                    started.command, env=environment | started.environment, stdout=log,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.meet,
                    preexec_fn=_on_its_own))
        deadline = time.monotonic() + START_SECONDS
        for rank in range(self.place.ranks):
            path = self.meet / f"ready.{rank}"
            while not path.exists():
                self._expect_alive()
                if time.monotonic() > deadline:
                    raise SystemFailed(f"did not start in {START_SECONDS} s{self._last_words()}")
                time.sleep(0.01)
            pid, _, self.version = path.read_text().strip().partition(" ")
            self.rank_pids.append(int(pid))
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
        """Remembers them: a rank that is killed cannot be asked, and leaves them behind."""
        found = set().union(*(shared_files(pid) for pid in pids)) - self.shared
        self.shared |= found
        if found:
            # For who comes after this process, should that be killed.
            (self.meet / "shared").write_text("\n".join(self.shared))

    def _signal_ranks(self, number):
        for pid in self.rank_pids if self.system.is_restless else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ask(self, variant, seconds, timeout_seconds):
        """Measures a line; a dict. Raises SystemFailed, then nothing more can be asked."""
        self._signal_ranks(signal.SIGCONT)
        times = self._ask(variant, seconds, timeout_seconds)
        self._signal_ranks(signal.SIGSTOP)
        self._see_shared_files(self.rank_pids)
        return times

    def _ask(self, variant, seconds, timeout_seconds):
        self.board.post(variant, seconds)
        for bell in self.bells:
            os.write(bell, b"!")
        deadline = time.monotonic() + timeout_seconds
        while not self.board.all_answered():
            # A rank writes a byte when it has answered, so this process sleeps while others work.
            readable, _, _ = select.select([self.idle], [], [], 0.5)
            if readable and not os.read(self.idle, 4096):
                time.sleep(0.05)  # No rank has it open.
            if self.board.all_answered():
                break
            self._expect_alive()
            if time.monotonic() > deadline:
                raise NoAnswer(f"no answer within {timeout_seconds:g} s")
        word, text = self.board.answer()
        if word == "failed":
            raise SystemFailed(text + self._last_words())
        if word != "ok":
            return {"error": f"{word}: {text}"}
        return self.board.times(self.place.oversubscribed)

    def _quit(self):
        self._signal_ranks(signal.SIGCONT)
        with contextlib.suppress(SystemFailed):
            self.board.post(systems.Variant("quit", 0), 0)
            for bell in self.bells:
                os.write(bell, b"!")
            deadline = time.monotonic() + END_SECONDS
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))

    def _kill(self):
        """Ends what is left of it: launchers first, which then clean up behind their ranks."""
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
        """Whether it is neither gone nor a zombie; takes the zombie if it is ours."""
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
        for descriptor in self.bells + ([self.idle] if self.idle is not None else []):
            os.close(descriptor)
        self.board.close()
        shutil.rmtree(self.meet, ignore_errors=True)

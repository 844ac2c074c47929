# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs a job of chaos_rank_program: starts it, follows the output of its ranks, finds what it
leaves."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import chaos_judge

KEY = "7" * 64
HOSTS = "10.79.0.1,10.79.0.2"
# After a first failure, the other ranks have this long to end by themselves; no bound is longer.
SETTLE_SECONDS = 20
SHARED_MEMORY = pathlib.Path("/dev/shm")


def processes_of(mark):
    """Returns the processes with this word in their environment; child processes inherit it."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environment = pathlib.Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def command_line(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(words[:3]).decode(errors="replace")


def kill_quietly(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """A running job. `network`: the namespaces of plans with two hosts (namespaces.py)."""

    def __init__(self, plan, bin_dir, folder, network=None):
        self.plan = plan
        self.network = network
        self.record = chaos_judge.Record()
        self.folder = pathlib.Path(folder)
        self.started = []  # The launchers, or the ranks of a job without one.
        self.undo = []  # Functions to call when the job has ended.
        self._mark = f"CHAOS_CASE={os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        self._bin = pathlib.Path(bin_dir)
        self._changed = threading.Condition()
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir(parents=True)
        self._shared_before = self._shared_memory()
        self._pipe_path = self.folder / "events"
        os.mkfifo(self._pipe_path)
        # Open for writing too, so that the pipe never reaches its end while the job lives.
        self._pipe = os.open(self._pipe_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._reading = True
        self._reader = threading.Thread(target=self._read_events)
        self._reader.start()

    # Starting.

    def start(self, arguments):
        """Starts one launcher, or one on each of two hosts, or each rank by itself."""
        plan = self.plan
        program = [str(self._bin / "chaos_rank_program"), "--events", str(self._pipe_path),
                   "--seed", str(plan.seed), "--seconds", str(plan.seconds),
                   "--timeout-ms", str(round(plan.timeout_s * 1000)),
                   "--join-timeout-ms", str(round(plan.join_timeout_s * 1000)),
                   *map(str, arguments)]
        if plan.world == "bare":
            meeting = {"STRETTO_SIZE": str(plan.ranks),
                       "STRETTO_RENDEZVOUS": f"tcp://127.0.0.1:{free_port()}"}
            for rank in range(plan.ranks):
                self._spawn(program, meeting | {"STRETTO_RANK": str(rank)})
            return
        hosts = 2 if plan.world == "two_hosts" else 1
        for host in range(hosts):
            command = [str(self._bin / "stretto"), "run", "-n", str(plan.ranks // hosts),
                       "--settle", str(SETTLE_SECONDS), "--grace", "1", "--json",
                       "--restarts", str(plan.restarts)]
            if hosts > 1:
                command = [*self.network.enter(host), *command,
                           "--hosts", HOSTS, "--host-index", str(host)]
            self._spawn(command + ["--", *program], {})

    def _spawn(self, command, variables):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("STRETTO_", "XDG_"))}
        name, value = self._mark.split("=")
        kept |= {name: value, "TMPDIR": str(self._temporary), "HOME": str(self.folder.parent)}
        if self.plan.world in ("tcp", "ucx"):
            kept["STRETTO_TRANSPORT"] = self.plan.world
        if self.plan.world == "two_hosts":
            kept["STRETTO_JOB_KEY"] = KEY
        output = self.folder / f"output-{len(self.started)}.txt"
        with output.open("wb") as file:
            self.started.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=kept | self.plan.environment | variables, cwd=self.folder))

    # Following.

    def _read_events(self):
        rest = b""
        while True:
            try:
                rest += os.read(self._pipe, 65536)
            except BlockingIOError:
                if not self._reading:
                    return
                time.sleep(0.001)
                continue
            *lines, rest = rest.split(b"\n")
            with self._changed:
                self.record.events += map(json.loads, lines)
                self._changed.notify_all()

    def wait_for(self, condition, timeout_s=20.0):
        """Waits until `condition()` is true for the events so far."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def ranks_that(self, event):
        return {entry["rank"] for entry in self.record.events if entry["event"] == event}

    def wait_until(self, event, ranks=None):
        """Waits until all ranks (or those in `ranks`) have reported `event`. If they do not, notes
        this as trouble of the driver."""
        wanted = set(range(self.plan.ranks) if ranks is None else ranks)
        if self.wait_for(lambda: wanted <= self.ranks_that(event)):
            return True
        self.record.trouble.append(
            f"ranks {sorted(wanted - self.ranks_that(event))} never said \"{event}\"")
        return False

    def pid(self, rank):
        """Returns the process that was last started as that rank."""
        return self.record.of_rank(rank, "started")[-1]["pid"]

    def struck(self, moment=None):
        """Records the time of the harm (`moment`, or now); a later call replaces it."""
        self.record.fault_s = time.monotonic() if moment is None else moment

    def signal(self, rank, number):
        self.struck()
        kill_quietly(self.pid(rank), number)

    def wait_for_actor(self):
        """Waits until the rank that does the harm itself has done it."""
        if self.wait_until("acts", self.plan.victims):
            self.struck(self.record.of_rank(self.plan.victims[0], "acts")[0]["t"])

    # Ending.

    def finish(self, limit_s):
        """Waits for the launchers, kills remaining processes, and returns the record."""
        deadline = time.monotonic() + limit_s
        for process in self.started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.record.hung = True
        self.record.ended_s = time.monotonic()
        left = self._processes_that_stay()
        if not self.record.hung:
            self.record.leavings += [f"process {pid} ({command_line(pid)})" for pid in left]
        for pid in left:
            kill_quietly(pid)
        for process in self.started:
            process.wait()
        self._reading = False
        self._reader.join()
        os.close(self._pipe)
        for undo in self.undo:
            undo()
        self._note_ends()
        self._note_files()
        return self.record

    def _processes_that_stay(self):
        """Returns the processes that still exist two seconds after the launchers have ended."""
        deadline = time.monotonic() + (0.0 if self.record.hung else 2.0)
        while (left := processes_of(self._mark)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return left

    @staticmethod
    def _shared_memory():
        return set(SHARED_MEMORY.glob("*stretto*")) if SHARED_MEMORY.is_dir() else set()

    def _note_files(self):
        self.record.leavings += [f"file {path}" for path in self._temporary.rglob("*")]
        self.record.leavings += [f"shared memory {path}"
                                 for path in self._shared_memory() - self._shared_before]

    def _note_ends(self):
        if self.plan.world == "bare":
            for rank, process in enumerate(self.started):
                died = process.returncode < 0
                self.record.ends[rank] = {
                    "signal": signal.Signals(-process.returncode).name if died else None,
                    "told_to_end": False}
            return
        for output in self.folder.glob("output-*.txt"):
            for line in output.read_text(errors="replace").splitlines():
                if line.startswith('{"') and '"first_failure"' in line:
                    report = json.loads(line)
                    ends = {end["rank"]: end for end in report["ranks"]
                            if end["seconds"] is not None}
                    self.record.ends |= ends
                    self.record.blamed.append((report["first_failure"], set(ends)))

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Kinds of cases of ./dev chaos: disagreements, wrong settings, short limits, floods, networks."""

import itertools
import os
import pathlib
import random
import signal
import socket
import time

from chaos_kinds import ByItself, CannotRun, Kind, actor_arguments, all_ranks
from chaos_job import kill_quietly
from chaos_plan import LAUNCHED, Right, Told

DISAGREEMENT_SECONDS = 2.0
LIMIT_SECONDS = 5.0
# Other ranks notice a lost host, unlike a dead process, only by its silence.
SILENCE_SECONDS = 10.0

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", *ROOTED)
# The collectives in which ranks can disagree on a field. A message that nobody receives is no
# disagreement.
FIELDS = {"root": ROOTED, "op": REDUCING, "count": (*COLLECTIVES, "send/recv"),
          "dtype": (*COLLECTIVES, "send/recv"), "collective": (*COLLECTIVES, "barrier"),
          "order": (*COLLECTIVES, "barrier")}

# The rank that lacks something may report this itself, and the others report that it does; nobody
# waits for a timeout.
SHORTAGES = ("PeerLost", "Aborted", "Refused", "SystemError", "OutOfMemory")


class Disagree(ByItself):
    """One rank calls something else than the others; each is told what."""

    name = "disagree"

    def draw(self, plan, rng):
        super().draw(plan, rng)
        field = rng.choice(sorted(FIELDS))
        plan.details |= {"field": field, "collective": rng.choice(FIELDS[field])}

    def prepare(self, plan, _job):
        return [*actor_arguments(plan, f"disagree-{plan.details['field']}",
                                 step=plan.details["step"]),
                "--collective", plan.details["collective"]]

    def expect(self, plan):
        return all_ranks(plan, Told(("Mismatch",), DISAGREEMENT_SECONDS,
                                    says=plan.details["collective"].replace("/", "|")))


class Wrong(ByItself):
    """One rank comes with another key, size or algorithm: all are refused at once."""

    name = "wrong"
    worlds = LAUNCHED

    def draw(self, plan, rng):
        plan.victims = [rng.randrange(plan.ranks)]
        plan.details["setting"] = rng.choice(("key", "size", "algorithm"))

    def prepare(self, plan, _job):
        return actor_arguments(plan, f"join-wrong-{plan.details['setting']}",
                               value=plan.ranks + 1)

    def expect(self, plan):
        types = ["Refused", "Mismatch"]
        if plan.world == "two_hosts" and plan.details["setting"] == "key":
            # Without the key, nobody on another host can prove to be a rank: its launcher tells
            # only that its process has ended.
            types.append("PeerLost")
        return all_ranks(plan, Told(tuple(types), 2.0))


def pids_group(name):
    """Creates a control group that can limit the number of threads; returns None if not
    permitted."""
    for parent in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        group = pathlib.Path(parent, name)
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            return group
        group.rmdir()
    return None


class Limit(ByItself):
    """One rank lacks descriptors, memory, files or threads, for a while or for good."""

    name = "limit"

    def draw(self, plan, rng):
        plan.victims = [rng.randrange(plan.ranks)]
        plan.seconds = 1.0
        resource = rng.choice(("nofile", "as", "fsize", "threads"))
        more = {"nofile": rng.randrange(0, 12), "as": rng.randrange(0, 128) << 20,
                "fsize": rng.choice((0, 4096, 1 << 20)), "threads": rng.randrange(1, 6)}
        # Without a launcher, nobody knows of a rank that never came.
        phases = ("allocate",) if plan.world == "bare" else ("join", "allocate")
        plan.details = {"phase": rng.choice(phases), "resource": resource,
                        "more": more[resource], "lift_ms": rng.choice((0, 200, 500))}

    def prepare(self, plan, job):
        details = plan.details
        prefix = "join-" if details["phase"] == "join" else ""
        # All ranks allocate in step 64.
        words = actor_arguments(plan, f"{prefix}limit-{details['resource']}", step=63,
                                value=details["more"], ms=details["lift_ms"])
        if details["resource"] != "threads":
            return words
        group = pids_group(f"stretto-chaos-{os.getpid()}-{plan.seed}")
        if group is None:
            raise CannotRun("threads cannot be limited here: no control group can be made")
        job.undo.append(group.rmdir)
        (group / "pids.max").write_text(str(details["more"]))
        return [*words, "--act-group", group]

    def expect(self, plan):
        expected = all_ranks(plan, Right(), Told(SHORTAGES, LIMIT_SECONDS))
        # The program itself allocates, too, and its own allocation may fail.
        expected[plan.victims[0]] = (Right(), Told((*SHORTAGES, "std::exception"), LIMIT_SECONDS))
        return expected


def listeners_of(pids):
    """Returns the addresses at which these processes accept connections on this host."""
    inodes = set()
    for pid in pids:
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    found = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            address, port = words[1].split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            found.append(("127.0.0.1" if host == "0.0.0.0" else host, int(port, 16)))
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) == 8 and words[3] == "00010000" and words[6] in inodes:
            found.append(words[7].replace("@", "\0", 1))
    return found


def connect(address):
    """Connects without waiting for the other side; returns None if that fails."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(0.2)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


class Flood(Kind):
    """Strangers connect, and say rubbish or nothing, while the ranks wait for one that is late."""

    name = "flood"
    worlds = ("shm", "tcp")

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.seconds = 0.3
        plan.details = {"target": rng.choice(("launcher", "ranks")),
                        "bytes": rng.choice((0, 1, 64, 5000)),
                        "connections": rng.choice((1, 40, 300)),
                        "late_ms": 500, "stop_after_s": rng.uniform(0.0, 0.02)}

    def prepare(self, plan, _job):
        return actor_arguments(plan, "join-late", ms=plan.details["late_ms"])

    def inject(self, plan, job):
        if not job.wait_until("started"):
            return
        job.struck()
        if plan.details["target"] == "launcher":
            self._attack(plan, job, listeners_of([job.started[0].pid]))
            return
        # Ranks listen for tcp only when all have come, so the late one is stopped once more.
        late = plan.victims[0]
        ranks = [job.pid(rank) for rank in plan.others()]
        if plan.world == "tcp" and job.wait_until("acts", [late]):
            time.sleep(plan.details["stop_after_s"])
            job.signal(late, signal.SIGSTOP)
        deadline = time.monotonic() + 0.4
        while not (addresses := listeners_of(ranks)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._attack(plan, job, addresses)
        kill_quietly(job.pid(late), signal.SIGCONT)

    @staticmethod
    def _attack(plan, job, addresses):
        rubbish = random.Random(plan.seed).randbytes(plan.details["bytes"])
        for address in itertools.islice(itertools.cycle(addresses), plan.details["connections"]):
            if connection := connect(address):
                job.undo.append(connection.close)  # It stays open until the job has ended.
                try:
                    connection.send(rubbish)
                except OSError:
                    pass

    def expect(self, plan):
        return all_ranks(plan, Right(within_s=plan.details["late_ms"] / 1000 + 3.0))


class Network(Kind):
    """The network between two hosts drops everything, one way or both, for good."""

    name = "network"
    worlds = ("two_hosts",)

    def draw(self, plan, rng):
        plan.details = {"delay_s": rng.uniform(0.0, 0.4),
                        "harm": rng.choice(("drop both", "drop to 0", "drop to 1",
                                            "unplug 0", "unplug 1"))}

    def inject(self, plan, job):
        if job.wait_until("joined"):
            time.sleep(plan.details["delay_s"])
            job.struck()
            self._harm(plan, job)

    @staticmethod
    def _harm(plan, job):
        verb, host = plan.details["harm"].split()[0], plan.details["harm"].split()[-1]
        if verb == "unplug":
            job.network.unplug(int(host))
        for end in (0, 1):
            if verb == "drop" and host in (str(end), "both"):
                job.network.drop_to(end)

    @staticmethod
    def _hears(plan, rank):
        """Whether packets of the other host still reach the host of this rank."""
        harm = plan.details["harm"]
        return harm.startswith("drop to") and harm != f"drop to {plan.host_of(rank)}"

    def expect(self, plan):
        return {rank: (Told(("PeerLost",), SILENCE_SECONDS,
                            says="network" if self._hears(plan, rank)
                            else "(?s)^(?!.*still heard).*network",
                            names=tuple(other for other in range(plan.ranks)
                                        if plan.host_of(other) != plan.host_of(rank))),)
                for rank in range(plan.ranks)}


class Outage(Network):
    """The same, but it heals within six seconds, and the job never knew."""

    name = "outage"

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.seconds = 1.0
        plan.details["outage_s"] = rng.uniform(0.5, 6.0)

    def inject(self, plan, job):
        super().inject(plan, job)
        time.sleep(plan.details["outage_s"])
        job.network.heal()
        job.struck()

    def expect(self, plan):
        return all_ranks(plan, Right())


KINDS = [Disagree(), Wrong(), Limit(), Flood(), Network(), Outage()]

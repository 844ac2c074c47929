# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Kinds of cases of ./dev chaos: deaths, stops and ends of ranks and launchers."""

import signal
import time

import chaos_plan
from chaos_plan import Anything, Right, Told

# The end of a socket tells other ranks of a death, on the same host or another. This takes
# milliseconds, unless other jobs keep the machine busy.
DEATH_SECONDS = 2.0


class CannotRun(Exception):
    """This machine does not allow the case; the text says why."""


class Kind:
    """One kind of harm. It has no state: the plan has the drawn values, the job what happens."""

    name = ""
    worlds = chaos_plan.WORLDS
    min_ranks = 2
    limit_s = 45.0  # A longer case counts as hung.

    def draw(self, plan, rng):
        """Adds to the plan the victims (here one rank) and the time."""
        plan.victims = [rng.randrange(plan.ranks)]

    def prepare(self, _plan, _job):
        """Runs before the job is started; returns more words for every rank's command line."""
        return []

    def inject(self, plan, job):
        """Does the harm while the job runs."""

    def expect(self, plan):
        """Returns, for each rank, a tuple of alternatives of which one has to come true; here that
        the others are told of the death of the victims."""
        return others_are(plan, Told(("PeerLost",), DEATH_SECONDS, tuple(plan.victims)))


def all_ranks(plan, *alternatives):
    return {rank: alternatives for rank in range(plan.ranks)}


def others_are(plan, *alternatives):
    """Expects these alternatives of all ranks but the victims, and nothing of the victims."""
    return {rank: (Anything(),) if rank in plan.victims else alternatives
            for rank in range(plan.ranks)}


def actor_arguments(plan, act, **more):
    """Returns the words by which the victim, a rank, does the harm itself."""
    words = ["--actor", plan.victims[0], "--act", act]
    for name, value in more.items():
        words += [f"--act-{name}", value]
    return words


def kill_after(plan, job, has_come):
    """If `has_come`, kills the first victim after the plan's delay."""
    if has_come:
        time.sleep(plan.details["delay_s"])
        job.signal(plan.victims[0], signal.SIGKILL)


class Nothing(Kind):
    """No fault: the job must end right."""

    name = "none"

    def draw(self, plan, rng):
        plan.seconds = rng.uniform(0.1, 1.5)

    def expect(self, plan):
        return all_ranks(plan, Right())


class Kill(Kind):
    """SIGKILL of a rank between or in collectives."""

    name = "kill"

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.details["delay_s"] = rng.uniform(0.0, 0.4)

    def inject(self, plan, job):
        kill_after(plan, job, job.wait_until("joined"))


class KillTwo(Kill):
    """SIGKILL of two ranks, one soon after the other."""

    name = "kill-two"
    min_ranks = 3

    def draw(self, plan, rng):
        plan.victims = rng.sample(range(plan.ranks), 2)
        plan.details = {"delay_s": rng.uniform(0.0, 0.4), "gap_s": rng.uniform(0.0, 0.02)}

    def inject(self, plan, job):
        super().inject(plan, job)
        if job.record.fault_s is not None:
            first_s = job.record.fault_s
            time.sleep(plan.details["gap_s"])
            job.signal(plan.victims[1], signal.SIGKILL)
            # The others may have been told of the first death already.
            job.struck(first_s)


class KillJoining(Kind):
    """SIGKILL of a rank while it joins, or while it waits for one that comes late."""

    name = "kill-joining"
    worlds = chaos_plan.LAUNCHED  # Without a launcher, nobody knows of a rank that never came.

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.details = {"delay_s": rng.uniform(0.0, 0.06), "late": rng.choice(plan.others()),
                        "late_ms": rng.choice((0, 300))}

    def prepare(self, plan, _job):
        return ["--actor", plan.details["late"], "--act", "join-late",
                "--act-ms", plan.details["late_ms"]]

    def inject(self, plan, job):
        kill_after(plan, job, job.wait_until("started", plan.victims))

    def expect(self, plan):
        bound_s = DEATH_SECONDS + plan.details["late_ms"] / 1000
        return others_are(plan, Told(("PeerLost",), bound_s, tuple(plan.victims)))


class KillLeaving(Kind):
    """SIGKILL of a rank while the job ends."""

    name = "kill-leaving"

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.seconds = 0.2
        plan.details["delay_s"] = rng.uniform(0.0, 0.003)

    def inject(self, plan, job):
        kill_after(plan, job, job.wait_for(lambda: job.ranks_that("done")))

    def expect(self, plan):
        return others_are(plan, Right(),
                          Told(("PeerLost",), DEATH_SECONDS, tuple(plan.victims)))


class KillLauncher(Kind):
    """SIGKILL of the launcher, also just after its start: nothing may survive it."""

    name = "kill-launcher"
    worlds = chaos_plan.LAUNCHED

    def draw(self, plan, rng):
        plan.victims = [rank for rank in range(plan.ranks) if plan.host_of(rank) == 0]
        early = plan.world != "two_hosts" and rng.random() < 0.6
        plan.details = {"early": early, "delay_s": rng.uniform(0.0, 0.03),
                        "act": rng.choice(("fork", "fork-session"))}

    def prepare(self, plan, _job):
        return actor_arguments(plan, plan.details["act"], step=1)

    def inject(self, plan, job):
        if plan.details["early"] or job.wait_until("acts", plan.victims[:1]):
            time.sleep(plan.details["delay_s"])
            job.struck()
            job.started[0].kill()


class Terminate(Kind):
    """SIGTERM to a launcher one of whose ranks ignores it: --grace (1 s) holds."""

    name = "terminate"
    worlds = ("shm", "tcp")

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.details = {"step": rng.randrange(1, 30), "delay_s": rng.uniform(0.0, 0.2)}

    def prepare(self, plan, _job):
        return actor_arguments(plan, "ignore-term", step=plan.details["step"])

    def inject(self, plan, job):
        if job.wait_until("acts", plan.victims):
            time.sleep(plan.details["delay_s"])
            job.struck()
            job.started[0].terminate()

    def expect(self, plan):
        return all_ranks(plan, Anything())


class KillForked(Kind):
    """SIGKILL of a rank with a forked child, which holds all its sockets."""

    name = "kill-forked"
    worlds = chaos_plan.LAUNCHED  # The launchers end the child.
    min_ranks = 3  # Its host has another rank then, which sees its end and tells the others.

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.details = {"step": rng.randrange(1, 30), "delay_s": rng.uniform(0.01, 0.2),
                        "act": rng.choice(("fork", "fork-session"))}

    def prepare(self, plan, _job):
        return actor_arguments(plan, plan.details["act"], step=plan.details["step"])

    def inject(self, plan, job):
        kill_after(plan, job, job.wait_until("acts", plan.victims))


class ByItself(Kind):
    """A rank harms the job in the middle of it."""

    act = ""

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.details["step"] = rng.randrange(1, 60)

    def prepare(self, plan, _job):
        return actor_arguments(plan, self.act, step=plan.details["step"])

    def inject(self, plan, job):
        job.wait_for_actor()


class Exit(ByItself):
    """exit(3) of a rank that has not destroyed its communicator."""

    name = "exit"
    act = "exit"


class Abort(ByItself):
    """A rank ends the communicator with a reason, which all must be told."""

    name = "abort"
    act = "abort"

    def expect(self, plan):
        return all_ranks(plan, Told(("Aborted",), DEATH_SECONDS, says="chaos ends this job"))


class Throw(ByItself):
    """An exception passes an operation that nobody will ever complete."""

    name = "throw"
    act = "throw"

    def expect(self, plan):
        told = all_ranks(plan, Told(("PeerLost", "Aborted"), DEATH_SECONDS, tuple(plan.victims)))
        told[plan.victims[0]] = (Told(("std::exception",), DEATH_SECONDS, says="chaos between"),)
        return told


class StopShort(Kind):
    """SIGSTOP for less than the timeout costs time and nothing else."""

    name = "stop-short"

    def draw(self, plan, rng):
        super().draw(plan, rng)
        plan.timeout_s = 8.0
        plan.seconds = 1.0
        plan.details = {"delay_s": rng.uniform(0.0, 0.3), "stopped_s": rng.uniform(0.2, 3.0)}

    def inject(self, plan, job):
        if job.wait_until("joined"):
            time.sleep(plan.details["delay_s"])
            job.signal(plan.victims[0], signal.SIGSTOP)
            time.sleep(plan.details["stopped_s"])
            job.signal(plan.victims[0], signal.SIGCONT)

    def expect(self, plan):
        return all_ranks(plan, Right())


class StopLong(StopShort):
    """SIGSTOP for longer than the timeout: who waited says for whom."""

    name = "stop-long"

    def draw(self, plan, rng):
        plan.victims = [rng.randrange(plan.ranks)]
        plan.timeout_s = rng.choice((1.0, 2.0))
        plan.details = {"delay_s": rng.uniform(0.0, 0.3), "stopped_s": plan.timeout_s + 2.5}

    def inject(self, plan, job):
        super().inject(plan, job)
        if job.record.fault_s is not None:
            # The others must be told while the rank is stopped, and the stopped rank soon after.
            job.struck(job.record.fault_s - plan.details["stopped_s"])

    def expect(self, plan):
        # A rank that waits for a rank that itself waits for the stopped one may name either,
        # but its text has both. An operation that the stopped rank has handed to its kernel
        # may still complete, before the operation that does not.
        told = all_ranks(plan, Told(("Timeout",), plan.details["stopped_s"],
                                    says=rf"rank {plan.victims[0]}\b"))
        told[plan.victims[0]] = (Told(("Timeout", "PeerLost", "Aborted"),
                                      plan.details["stopped_s"] + DEATH_SECONDS),)
        return told


class Shrink(Kind):
    """The survivors of a death go on without the dead, who may become more meanwhile."""

    name = "shrink"
    min_ranks = 3

    def draw(self, plan, rng):
        deaths = rng.randrange(1, plan.ranks - 1)
        plan.victims = rng.sample(range(plan.ranks), deaths)
        plan.seconds = 2.0
        plan.details = {"delay_s": rng.uniform(0.0, 0.3),
                        "gaps_s": [round(rng.uniform(0.0, 0.02), 4) for _ in range(deaths - 1)]}

    def prepare(self, _plan, _job):
        return ["--shrinks"]

    def inject(self, plan, job):
        if not job.wait_until("joined"):
            return
        time.sleep(plan.details["delay_s"])
        job.signal(plan.victims[0], signal.SIGKILL)
        for victim, gap_s in zip(plan.victims[1:], plan.details["gaps_s"]):
            job.wait_for(lambda: job.ranks_that("shrinking"))
            time.sleep(gap_s)
            job.signal(victim, signal.SIGKILL)

    def expect(self, plan):
        return others_are(plan, Right(size=plan.ranks - len(plan.victims), within_s=3.0))


class Elastic(Kind):
    """The processes of an elastic job meet again after each death, at last with all new ones."""

    name = "elastic"
    worlds = ("shm", "tcp", "two_hosts")

    def draw(self, plan, rng):
        deaths = rng.randrange(1, 4)
        plan.restarts = deaths
        # Deaths during the steps, while the others meet again, and while the new process comes.
        plan.details = {"kills": [rng.randrange(plan.ranks) for _ in range(deaths)],
                        "gaps_s": [round(rng.choice((0.0, 0.05, 1.0)) + rng.uniform(0.0, 0.15), 4)
                                   for _ in range(deaths)]}
        # The last death must come before all ranks have ended: afterwards no process would be left
        # to meet.
        plan.seconds = 2.0 + sum(plan.details["gaps_s"])

    def prepare(self, _plan, _job):
        return ["--elastic"]

    def inject(self, plan, job):
        if job.wait_until("joined"):
            for rank, gap_s in zip(plan.details["kills"], plan.details["gaps_s"]):
                time.sleep(gap_s)
                job.signal(rank, signal.SIGKILL)

    def expect(self, plan):
        # The launcher waits for a second before it starts a rank again.
        return all_ranks(plan, Right(size=plan.ranks, within_s=DEATH_SECONDS + 3.0))


KINDS = [Nothing(), Kill(), KillTwo(), KillJoining(), KillLeaving(), KillLauncher(), Terminate(),
         KillForked(), Exit(), Abort(), Throw(), StopShort(), StopLong(), Shrink(),
         Elastic()]

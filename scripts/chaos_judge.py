# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Judges a case of ./dev chaos: lists what is wrong, from the record of the case."""

import dataclasses
import re

from chaos_plan import Anything, Right, Told

# Operations, one of which the error of a running operation has to name.
OPERATION = re.compile(r"\b(all_reduce|reduce_scatter|all_gather|broadcast|barrier|point_to_point|"
                       r"send|recv|reduce|gather|scatter|all_to_all|batch_send_recv|"
                       r"before the first collective|the set-up of the communicator|"
                       r"setting up the communicator)\b")
# Numbers whose meaning only the library's authors know.
INTERNAL = re.compile(r"#\d{7,}|\b[0-9a-f]{16}\b")
# How long a launcher may live after the last sign of life of its ranks.
LINGERING_SECONDS = 4.0


@dataclasses.dataclass
class Record:
    """The observations of a case."""

    events: list = dataclasses.field(default_factory=list)
    fault_s: float = None  # When the last harm was done, on the monotonic clock.
    ended_s: float = None  # When the last launcher ended.
    hung: bool = False
    leavings: list = dataclasses.field(default_factory=list)
    ends: dict = dataclasses.field(default_factory=dict)  # Rank to its end; from the launchers.
    # For each launcher: the rank that it reports as the first to fail, and the ranks that it
    # started.
    blamed: list = dataclasses.field(default_factory=list)
    trouble: list = dataclasses.field(default_factory=list)  # Faults of the driver itself.

    def of_rank(self, rank, *names):
        return [event for event in self.events
                if event["rank"] == rank and event["event"] in names]


@dataclasses.dataclass
class Verdict:
    problems: list
    worst_s: float = 0.0
    bound_s: float = 0.0


def check_text(event):
    """Yields what is wrong with the text of an error, whatever error it is."""
    text = event["text"]
    if any(ord(letter) < 32 and letter != "\n" or ord(letter) == 127 for letter in text):
        yield "has control characters"
    if INTERNAL.search(text):
        yield "has a number that only the library knows"
    if event["during"] == "step" and event["type"] in ("PeerLost", "Timeout", "Mismatch"):
        if not OPERATION.search(text):
            yield "does not name the operation"
    if event["type"] == "InternalError":
        yield "speaks of a bug in the library"


def check_told(expected, errors, fault_s):
    """Yields the differences between the first error of a rank and the expected one."""
    if not errors:
        yield "got no error"
        return
    error = errors[0]
    if error["type"] not in expected.types:
        yield f"got {error['type']}, not {' or '.join(expected.types)}"
    if expected.names and error["named"] not in expected.names:
        wanted = " or ".join(map(str, expected.names))
        yield f"named rank {error['named']}, not {wanted}"
    if expected.says and not re.search(expected.says, error["text"]):
        yield f"does not say \"{expected.says}\""
    late_s = error["t"] - fault_s
    if late_s > expected.within_s:
        yield f"heard of it after {late_s:.2f} s, not {expected.within_s:g} s"
    elif late_s < -0.05:
        yield f"failed {-late_s:.2f} s before anything was done"


def check_right(expected, record, rank):
    """Yields the reasons why a rank has not ended as expected without an error."""
    if not record.of_rank(rank, "done"):
        yield "did not end right"
    arrivals = record.of_rank(rank, "regrouped" if expected.size else "joined")
    if not expected.size:
        yield from (f"got {error['type']}" for error in record.of_rank(rank, "error"))
    elif not arrivals or arrivals[-1]["size"] != expected.size:
        size = arrivals[-1]["size"] if arrivals else "no ranks"
        yield f"ended in a group of {size}, not {expected.size}"
    if expected.within_s and arrivals and arrivals[-1]["t"] - record.fault_s > expected.within_s:
        delay_s = arrivals[-1]["t"] - record.fault_s
        yield f"could go on after {delay_s:.2f} s, not {expected.within_s:g} s"


def check_rank(rank, alternatives, record):
    """Returns the problems of a rank with the alternative that it violates least."""
    errors = record.of_rank(rank, "error")
    found = []
    for expected in alternatives:
        if isinstance(expected, Anything):
            return []
        if isinstance(expected, Told):
            problems = list(check_told(expected, errors, record.fault_s))
        else:
            problems = list(check_right(expected, record, rank))
        found.append(problems)
    problems = min(found, key=len)
    texts = [f"{errors[0]['type']} \"{errors[0]['text']}\""] if errors else []
    return [f"rank {rank} " + "; ".join(problems + texts)] if problems else []


def check_end(record):
    """Yields a problem if a launcher lives on after its ranks have ended."""
    signs_s = [event["t"] for event in record.events]
    if record.fault_s is not None:
        signs_s.append(record.fault_s)
    lingered_s = record.ended_s - max(signs_s, default=record.ended_s)
    if not record.hung and lingered_s > LINGERING_SECONDS:
        yield f"the launcher lingered for {lingered_s:.2f} s"


def delay_s(record, rank, alternatives):
    """Returns how long after the fault a rank was told or could go on; None if neither is
    expected."""
    names = {"error" if isinstance(expected, Told) else "regrouped" if expected.size else "joined"
             for expected in alternatives
             if isinstance(expected, Told) or isinstance(expected, Right) and expected.within_s}
    seen = [event["t"] for event in record.of_rank(rank, *names)]
    return (seen[-1] if "regrouped" in names else seen[0]) - record.fault_s if seen else None


def worst_delay_s(record, expectation):
    """Returns the longest delay of all ranks. If nothing is expected of any rank, the delay lasts
    until no process is left."""
    if record.fault_s is None:
        return 0.0
    delays = [delay_s(record, rank, row) for rank, row in expectation.items()]
    if all(isinstance(row[0], Anything) for row in expectation.values()):
        delays.append(record.ended_s - record.fault_s)
    return max([0.0] + [delay for delay in delays if delay is not None])


def longest_bound_s(expectation):
    """Returns the longest bound of all expectations."""
    return max((expected.within_s for row in expectation.values() for expected in row
                if getattr(expected, "within_s", None)), default=0.0)


def judge(expectation, record):
    """Returns the verdict. `expectation`: rank to a tuple of alternatives. The record of a kind
    without a fault has no fault time."""
    problems = list(record.trouble)
    if record.hung:
        problems.append("hang: the job had to be killed")
    harmless = all(row == (Right(),) for row in expectation.values())
    if record.fault_s is None and not harmless:
        problems.append("nothing was done to the job")
        return Verdict(problems)
    for event in record.events:
        if event["event"] == "wrong":
            problems.append(f"rank {event['rank']} has a wrong value: {event['text']}")
        elif event["event"] == "error":
            problems += [f"rank {event['rank']}: the text {problem}: \"{event['text']}\""
                         for problem in check_text(event)]
    for rank, alternatives in sorted(expectation.items()):
        problems += check_rank(rank, alternatives, record)
    for rank, end in sorted(record.ends.items()):
        spared = not isinstance(expectation[rank][0], Anything)
        if spared and end["signal"] is not None and not end["told_to_end"]:
            problems.append(f"rank {rank} died of {end['signal']}")
    victims = {rank for rank, row in expectation.items() if isinstance(row[0], Anything)}
    for blamed, ranks in record.blamed:
        # If another host has a victim too, survivors there may end before this host's victim.
        if victims and victims <= ranks and blamed not in {None, *victims}:
            # A rank that has closed its sockets may end a little later than the ranks that noticed
            # it.
            early_s = (min(record.ends[rank]["seconds"] for rank in victims & ranks) -
                       record.ends[blamed]["seconds"])
            if early_s > 0.1:
                problems.append(f"the launcher says that rank {blamed} failed first")
    problems += check_end(record)
    problems += [f"left behind: {thing}" for thing in record.leavings]
    return Verdict(problems, worst_delay_s(record, expectation), longest_bound_s(expectation))

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What is drawn for a case of ./dev chaos, and what has to become of its ranks."""

import dataclasses
import random

# "bare": without a launcher; rank 0 hosts the store in which the ranks meet.
WORLDS = ("shm", "tcp", "ucx", "two_hosts", "bare")
LAUNCHED = ("shm", "tcp", "ucx", "two_hosts")
# What may be set for all ranks of a job; mostly nothing.
SETTINGS = {"STRETTO_PROGRESS_THREAD": (None, None, "always", "never"),
            "STRETTO_SINGLE_COPY": (None, None, None, "always"),
            "STRETTO_STREAMS": (None, None, "3"),
            "STRETTO_ENCRYPTION": (None, None, "tls")}


@dataclasses.dataclass
class Plan:
    """One case. The same kind and seed give the same plan on every machine."""

    kind: str
    seed: int
    world: str
    ranks: int
    timeout_s: float = 25.0
    join_timeout_s: float = 25.0
    seconds: float = 60.0  # After which the ranks would end by themselves.
    restarts: int = 0  # Of failed ranks, by each launcher.
    victims: list = dataclasses.field(default_factory=list)
    details: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)

    def others(self):
        return [rank for rank in range(self.ranks) if rank not in self.victims]

    def host_of(self, rank):
        return rank * 2 // self.ranks if self.world == "two_hosts" else 0

    def replay_command(self, rate=0, congestion_control="cubic"):
        """`rate` and congestion control: of the links between hosts, as the options say them."""
        shaped = f" --rate {rate:g}" if rate and self.world == "two_hosts" else ""
        if congestion_control != "cubic" and self.world == "two_hosts":
            shaped += f" --congestion-control {congestion_control}"
        return f"./dev chaos --only {self.kind} --seed {self.seed} --cases 1{shaped}"

    def describe(self):
        words = [f"{self.ranks} ranks", self.world]
        if self.victims:
            words.append("victims " + ", ".join(map(str, self.victims)))
        words += [f"{name} {value}" for name, value in self.details.items()]
        words += [f"{name}={value}" for name, value in self.environment.items()]
        return "; ".join(words)


@dataclasses.dataclass(frozen=True)
class Right:
    """The rank ends as if nothing had happened; or, after losses, in a group of `size` ranks.

    It has joined, or has that group, so soon after the (last) fault.
    """

    size: int = 0
    within_s: float = None


@dataclasses.dataclass(frozen=True)
class Told:
    """The rank gets an error soon after the fault."""

    types: tuple
    within_s: float
    names: tuple = ()  # The ranks of which one must be named; empty: anybody, or nobody.
    says: str = ""  # A regular expression that the text must match.


@dataclasses.dataclass(frozen=True)
class Anything:
    """The rank is the victim: nothing is expected of it."""


def draw(kind, seed):
    """The plan of a case of a kind (see chaos_kinds.py)."""
    rng = random.Random(f"{kind.name} {seed}")
    world = rng.choice(kind.worlds)
    ranks = rng.choice([count for count in ((2, 4, 6) if world == "two_hosts" else range(2, 7))
                        if count >= kind.min_ranks])
    plan = Plan(kind=kind.name, seed=seed, world=world, ranks=ranks)
    kind.draw(plan, rng)
    for name, values in SETTINGS.items():
        if (value := rng.choice(values)) is not None:
            plan.environment[name] = value
    # Where rank 0 makes the key, it has gone through the network; and UCX encrypts nothing.
    if world in ("bare", "ucx"):
        plan.environment.pop("STRETTO_ENCRYPTION", None)
    for name, value in plan.details.items():
        if isinstance(value, float):
            plan.details[name] = round(value, 4)
    return plan

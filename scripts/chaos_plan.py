# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Draws the plan of a case of ./dev chaos, and defines the possible expectations of its ranks."""

import dataclasses
import random

# "bare": without a launcher; rank 0 hosts the store in which the ranks meet.
WORLDS = ("shm", "tcp", "ucx", "two_hosts", "bare")
LAUNCHED = ("shm", "tcp", "ucx", "two_hosts")
# Settings that a job may draw for all of its ranks; mostly none.
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
    seconds: float = 60.0  # After this time the ranks end by themselves.
    restarts: int = 0  # How often each launcher restarts failed ranks.
    victims: list = dataclasses.field(default_factory=list)
    details: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)

    def others(self):
        return [rank for rank in range(self.ranks) if rank not in self.victims]

    def host_of(self, rank):
        return rank * 2 // self.ranks if self.world == "two_hosts" else 0

    def replay_command(self, rate=0, congestion_control="cubic"):
        """Returns the command that repeats this case. `rate` and `congestion_control` describe the
        links between hosts, in the words of the options."""
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
    """The rank ends as if nothing had happened or, after losses, in a group of `size` ranks.

    It has joined, or has that group, within `within_s` seconds after the (last) fault.
    """

    size: int = 0
    within_s: float = None


@dataclasses.dataclass(frozen=True)
class Told:
    """The rank gets an error within `within_s` seconds after the fault."""

    types: tuple
    within_s: float
    names: tuple = ()  # The error must name one of these ranks; empty: any rank or none.
    says: str = ""  # A regular expression that the text must match.


@dataclasses.dataclass(frozen=True)
class Anything:
    """The rank is the victim: nothing is expected of it."""


def draw(kind, seed):
    """Draws the plan of a case of a kind (see chaos_kinds.py)."""
    rng = random.Random(f"{kind.name} {seed}")
    world = rng.choice(kind.worlds)
    ranks = rng.choice([count for count in ((2, 4, 6) if world == "two_hosts" else range(2, 7))
                        if count >= kind.min_ranks])
    plan = Plan(kind=kind.name, seed=seed, world=world, ranks=ranks)
    kind.draw(plan, rng)
    for name, values in SETTINGS.items():
        if (value := rng.choice(values)) is not None:
            plan.environment[name] = value
    # If rank 0 makes the key, the key has crossed the network; and UCX does not encrypt.
    if world in ("bare", "ucx"):
        plan.environment.pop("STRETTO_ENCRYPTION", None)
    for name, value in plan.details.items():
        if isinstance(value, float):
            plan.details[name] = round(value, 4)
    return plan

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Computes figures from measured lines: medians over repeats within one regime, and ratios."""

import collections
import dataclasses
import statistics

import systems

REGIMES = ["near", "far", "oversubscribed", "unknown", "mixed"]
KINDS = ["registered", "private", "huge"]
KIB, MIB = 1024, 1024 * 1024


def size_text(size):
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def ratio_text(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


@dataclasses.dataclass(frozen=True)
class Axis:
    """The variable of a table's rows: `key` is its name in a line."""

    key: str
    caption: str
    name_of: object = str  # Formats a value.


@dataclasses.dataclass
class Cell:
    """One way of one system to run one operation: its lines of one regime."""

    system: str
    family: str
    buffers: str
    in_place: bool
    algorithm: str = ""
    p50s: dict = dataclasses.field(default_factory=dict)  # By repeat.
    p99s: dict = dataclasses.field(default_factory=dict)

    @property
    def p50_us(self):
        return statistics.median(self.p50s.values())

    @property
    def p99_us(self):
        return statistics.median(self.p99s.values())

    @property
    def jitter(self):
        return self.p99_us / self.p50_us if self.p50_us > 0 else 0.0


@dataclasses.dataclass
class Ratio:
    """The other system's time divided by stretto's: above 1, stretto is faster."""

    value: float  # The median over the repeats that both have in this regime.
    low: float
    high: float

    def text(self):
        return ratio_text(self.value)

    def spread_text(self):
        return f"{ratio_text(self.low)}-{ratio_text(self.high)}"


@dataclasses.dataclass
class Row:
    """All measurements of one operation at one size in one regime."""

    operation: str
    ranks: int
    bytes: int
    regime: str
    cells: list

    def best(self, family="", system="", buffers=""):
        """Returns the fastest cell that matches; None if there is none."""
        fitting = [cell for cell in self.cells
                   if family in ("", cell.family) and system in ("", cell.system)
                   and buffers in ("", cell.buffers)]
        return min(fitting, key=lambda cell: cell.p50_us, default=None)

    def ours(self, kind):
        return self.best(system="stretto", buffers=kind)

    def ratio(self, kind, family):
        """Returns the ratio of a family's best time to stretto's on buffers of this kind."""
        return _ratio(self.best(family=family), self.ours(kind))

    def bare_ratio(self, kind):
        """The best MPI over loops without a library: a guide to the largest possible ratio."""
        bare = self.best(family="bare", buffers=kind)
        if bare is None and self.bytes <= systems.LARGEST_MEETING_BYTES:
            bare = self.best(family="bare")
        return _ratio(self.best(family="mpi"), bare)


def _ratio(theirs, ours):
    """Returns the ratio of their time to ours, over repeats; None if a cell is missing."""
    if ours is None or theirs is None or ours.p50_us <= 0:
        return None
    both = set(ours.p50s) & set(theirs.p50s)
    each = [theirs.p50s[repeat] / ours.p50s[repeat] for repeat in both]
    # If no repeat has both in this regime, only their medians can be compared.
    each = each or [theirs.p50_us / ours.p50_us]
    return Ratio(statistics.median(each), min(each), max(each))


def _cells(lines):
    cells = {}
    for line in lines:
        key = (line["system"], line["buffers"], line["in_place"], line["algorithm"])
        cell = cells.setdefault(key, Cell(line["system"], line["family"], *key[1:]))
        cell.p50s[line["repeat"]] = line["p50_us"]
        cell.p99s[line["repeat"]] = line["p99_us"]
    return list(cells.values())


def rows_of(lines):
    """Returns a Row for each operation, size and regime with figures. "mixed" lines are ignored.

    An operation's sizes keep the order of measurement. Of two regimes, the one with more lines
    comes first.
    """
    groups = collections.OrderedDict()
    for line in lines:
        if "error" in line or "p50_us" not in line or line["regime"] == "mixed":
            continue
        groups.setdefault((line["operation"], line["ranks"], line["bytes"]), []).append(line)
    rows = []
    for (operation, ranks, size), members in groups.items():
        by_regime = collections.defaultdict(list)
        for line in members:
            by_regime[line["regime"]].append(line)
        order = sorted(by_regime, key=lambda name: (-len(by_regime[name]), REGIMES.index(name)))
        for regime in order:
            rows.append(Row(operation, ranks, size, regime, _cells(by_regime[regime])))
    return rows


def bound_share(row, kind):
    """Returns the time of p concurrent copies divided by stretto's; None if not known."""
    ours, copies = row.ours(kind), row.best(family="bound")
    if ours is None or copies is None or ours.p50_us <= 0:
        return None
    return copies.p50_us / ours.p50_us

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Three tables between hosts, for stretto and its peers, two-level against flat: the speed of an
all-reduce by its size, by the number of concurrent ones, and by the number of ranks."""

import dataclasses
import statistics

import figures
import hosts_systems
import peers

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
PART_BYTES = 1 << 20
AT_ONCE = [1, 2, 4, 8, 16]
RANKS_OF_HOST = [1, 2, 3, 4]
RANKS_BYTES = 4 << 20
# By system and algorithm. For stretto: its own choice, and the algorithms compared by name.
NAMES = {("stretto", ""): "stretto", ("stretto", "two_level_mapped"): "stretto, two-level",
         ("stretto", "direct"): "stretto, flat", ("gloo", ""): "Gloo", ("openmpi", ""): "Open MPI"}
ALGORITHMS = ("two_level_mapped", "direct")


@dataclasses.dataclass(frozen=True)
class Ask:
    """One point of a plot: one or several concurrent all-reduces, of `bytes` in total."""

    plot: str
    x: int
    bytes: int
    at_once: int = 1


def asks_on_one_shape(most_bytes):
    asks = [Ask("size", size, size) for size in SIZES] + [
        Ask("at_once", count, count * PART_BYTES, count) for count in AT_ONCE]
    return [ask for ask in asks if ask.bytes <= most_bytes]


def asks_of_ranks(ranks):
    return [Ask("ranks", ranks, RANKS_BYTES)]


def measure(contest, asks):
    """Measures a line for each point, system, algorithm and repeat, in turns."""
    for ask in asks:
        for repeat in range(contest.arguments.repeats):
            for system in contest.systems:
                for variant in system.variants("all_reduce", ask.bytes, ["private"]):
                    contest.measure(system, "all_reduce",
                                    dataclasses.replace(variant, at_once=ask.at_once), repeat)
                    contest.lines[-1] |= {"plot": ask.plot, "x": ask.x,
                                          "name": NAMES[system.name, variant.algorithm]}


def shapes_of_ranks(shape):
    """Returns shapes with as many hosts and other numbers of ranks per host."""
    hosts = max(hosts_systems.placement_of(shape)) + 1
    return [f"{hosts}x{ranks}" for ranks in RANKS_OF_HOST]


def speeds(lines, plot):
    """Returns {name: {x: MB/s of each repeat}}, the bytes of a rank's buffers divided by the
    time."""
    found = {}
    for line in lines:
        if line["plot"] == plot and "p50_us" in line:
            found.setdefault(line["name"], {}).setdefault(line["x"], []).append(
                line["bytes"] / line["p50_us"])
    return found


PLOTS = [figures.Axis("size", "One all_reduce, by bytes per rank", figures.size_text),
         figures.Axis("at_once",
                      f"Several all_reduces of {figures.size_text(PART_BYTES)}, started together"),
         figures.Axis("ranks", f"One all_reduce of {figures.size_text(RANKS_BYTES)} per rank")]


def text(lines):
    """Returns a table for each plot."""
    parts = []
    for plot in PLOTS:
        found = speeds(lines, plot.key)
        rows = [[plot.name_of(x), *(f"{statistics.median(of[x]):.0f}" if x in of else "-"
                                    for of in found.values())]
                for x in sorted({x for of in found.values() for x in of})]
        parts.append(f"{plot.caption}, in MB/s (bytes per rank over time):\n\n"
                     + peers.markdown([plot.key.replace("_", " "), *found], rows))
    return "\n\n".join(parts)

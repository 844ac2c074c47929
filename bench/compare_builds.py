#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares the collectives of two builds of stretto in turns, as changes are judged.

Runs `stretto bench` of both build folders one after the other, as often as --rounds says, each time
in the other order. Prints for each line the median over the rounds of the second build's time
divided by the first one's, with the smallest and the largest. Rounds in which the cores of both
were near each other are one line, those in which they were far another; where they were near for
one build and far for the other, nothing is compared. Exits 1 if a median is above --limit.

example:
  python3 bench/compare_builds.py ../before/build/release build/release --rounds 9 --limit 1.03
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys


def measure(build, options):
    command = [build / "bin" / "stretto", "bench", *options.operations, "-n", str(options.ranks),
               "--bytes", options.bytes, "--seconds-per-line", str(options.seconds), "--json"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {(line["operation"], line["buffers"], line["bytes"], line["regime"]): line["p50_us"]
            for line in lines if "p50_us" in line}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, help="a build folder")
    parser.add_argument("after", type=pathlib.Path, help="another")
    parser.add_argument("--operations", nargs="+", default=["all_reduce"])
    parser.add_argument("--bytes", default="8,4K,64K,1M,16M")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each line of a run")
    parser.add_argument("--limit", type=float, default=float("inf"))
    options = parser.parse_args()
    ratios, times = collections.defaultdict(list), collections.defaultdict(list)
    measured = 0
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        order = [options.before, options.after]
        taken = {build: measure(build, options) for build in order[::1 if number % 2 else -1]}
        measured += len(taken[options.before])
        for key, before in taken[options.before].items():
            after = taken[options.after].get(key)
            if after is not None and before > 0 and key[3] != "mixed":
                ratios[key].append(after / before)
                times[key].append((before, after))
    print(f"{'operation':14} {'buffers':11} {'bytes':>10} {'cores':14} {'rounds':>6} "
          f"{'before us':>10} {'after us':>10} {'ratio':>6}   from to")
    for key, values in ratios.items():
        before, after = (statistics.median(pair[i] for pair in times[key]) for i in (0, 1))
        print(f"{key[0]:14} {key[1]:11} {key[2]:10} {key[3]:14} {len(values):6} {before:10.3f} "
              f"{after:10.3f} {statistics.median(values):6.3f}   {min(values):.2f} "
              f"{max(values):.2f}")
    print(f"{sum(map(len, ratios.values()))} of {measured} measurements of a line found the cores "
          "of both builds alike and were compared.")
    if not ratios:
        sys.exit("no line was measured with the cores of both builds alike")
    return any(statistics.median(values) > options.limit for values in ratios.values())


if __name__ == "__main__":
    sys.exit(main())

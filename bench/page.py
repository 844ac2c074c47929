#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Draws what `stretto bench --json` has measured, as one page of HTML that needs nothing else."""

import argparse
import json
import statistics
import sys

import chart
import figures
import peers_page

EXAMPLE = "example: stretto bench --json | python3 bench/page.py > bench.html"
STYLES = {"registered": "ours", "private": "a", "huge": "b"}
# Of each chart: the key of a line, the title and what the vertical axis says.
CHARTS = (("p50_us", "Time, microseconds", "us"), ("busbw_gbps", "Bus bandwidth", "GB/s"),
          ("efficiency", "Speed of copies over speed of the all-reduce", "of copies"))
COLUMNS = ("bytes", "buffers", "p50_us", "p99_us", "max_us", "algbw_gbps", "busbw_gbps",
           "efficiency", "regime", "check", "algorithm")


def points_of(lines, key, usual):
    """One point for each size: the median of its repeats."""
    points = []
    for size in sorted({line["bytes"] for line in lines}):
        repeats = [line for line in lines if line["bytes"] == size and line[key]]
        if not repeats:
            continue
        middle = statistics.median(line[key] for line in repeats)
        title = "; ".join(f"{name} {repeats[0][name]}" for name in COLUMNS)
        hollow = any(line["regime"] != usual for line in repeats)
        points.append(chart.Point(size, middle, hollow=hollow, title=title))
    return points


def charts(lines):
    regimes = [line["regime"] for line in lines]
    usual = max(set(regimes), key=regimes.count)
    sizes = sorted({line["bytes"] for line in lines})
    ticks = [(size, figures.size_text(size)) for size in sizes]
    parts = []
    for key, title, unit in CHARTS if len(ticks) > 1 else ():
        curves = [chart.Line(kind, STYLES[kind],
                             points_of([line for line in lines if line["buffers"] == kind], key,
                                       usual)) for kind in STYLES]
        parts.append(peers_page.figure(title, chart.chart(curves, [], ticks, unit, title),
                                       f"Medians; rings were not measured with the cores {usual}."))
    return f'<div class="plots">{"".join(parts)}</div>'


def section(operation, lines):
    rows = [["" if line[key] is None else str(line[key]) for key in COLUMNS] for line in lines]
    sized = [line for line in lines if line["bytes"] > 0]
    return (f"<h2>{peers_page.escape(operation)}</h2>{charts(sized) if sized else ''}"
            f"{peers_page.html_table(COLUMNS, rows)}")


def page(lines):
    first = lines[0]
    operations = dict.fromkeys(line["operation"] for line in lines)
    sections = "".join(section(name, [line for line in lines if line["operation"] == name])
                       for name in operations)
    facts = f"{first['ranks']} ranks over {first['transport']}, stretto {first['version']}"
    return peers_page.whole("stretto bench", peers_page.escape(facts), sections)


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument("file", nargs="?", type=argparse.FileType(), default=sys.stdin,
                        help="lines of JSON [standard input]")
    lines = [json.loads(text) for text in parser.parse_args(words).file if text.strip()]
    if not lines:
        print("bench/page.py: no line of JSON came; " + EXAMPLE, file=sys.stderr)
        return 2
    print(page(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the report of ./dev demo and writes its numbers."""

import html
import json
import math
import os

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 64, 12, 12, 44  # Of one chart.
GAP, HEAD = 24, 72  # Between charts, and above each.
COLOURS = ("#8a8f98", "#2f7fc1", "#d9541e", "#3c9a5f", "#8a6bc0")  # For 1 process and for more.
PART_COLOURS = ("#d9541e", "#7fb0d8")
STYLE = """svg{color:#1f2328;font-family:sans-serif}svg text{fill:currentColor;font-size:12px}
.grid{stroke:#8884}.line{fill:none;stroke-width:2}"""


def scale(values, begin, end, room):
    """Returns a logarithmic scale from values to pixels, with a factor `room` of space at both
    ends."""
    low, high = math.log(min(values) / room), math.log(max(values) * room)
    return lambda value: begin + (math.log(value) - low) / (high - low) * (end - begin)


def linear(low, high, begin, end):
    return lambda value: begin + (value - low) / (high - low or 1) * (end - begin)


def axes(x_scale, y_scale, steps, ys, unit):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    first, last = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [factor * 10.0 ** power for power in range(first, last + 1) for factor in factors]
    parts = [f'<text x="{LEFT}" y="{TOP}">{html.escape(unit)}</text>']
    for tick, y in ((tick, y_scale(tick)) for tick in ticks):
        if TOP <= y <= bottom:
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/><text x="{LEFT - 8}" '
                         f'y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    for step, x in ((step, x_scale(step)) for step in steps):
        parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/><text x="{x:.1f}" '
                     f'y="{bottom + 20}" text-anchor="middle">{step}</text>')
    return parts


def steps_drawing(lines, colours, unit):
    """Draws lines ({name: values}) over the steps of a training; the vertical axis is logarithmic.
    The lines may overlap, so they are dashed to keep all visible."""
    ys = [y for line in lines.values() for y in line]
    last = max(map(len, lines.values())) - 1
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10 ** 9)
                if last / step <= 8)
    x_scale = linear(0, last, LEFT, WIDTH - RIGHT)
    y_scale = scale(ys, HEIGHT - BOTTOM, TOP, 1.25)
    parts = axes(x_scale, y_scale, range(0, last + 1, step), ys, unit)
    for i, (line, colour) in enumerate(zip(lines.values(), colours)):
        path = "L".join(f"{x_scale(x):.1f} {y_scale(y):.1f}" for x, y in enumerate(line))
        parts.append(f'<path class="line" stroke="{colour}" '
                     f'stroke-dasharray="9 {9 * (len(lines) - 1)}" '
                     f'stroke-dashoffset="{-9 * i}" d="M{path}"/>')
    return parts


def bars_drawing(stacks, colours, names, notes, unit):
    """Draws stacked bars from zero: each part ({name: a value for each bar}) is a piece of the bar,
    with a name below each bar and a note above it."""
    tops = [sum(values) for values in zip(*stacks.values())]
    y_scale = linear(0, 1.25 * max(*tops, 1e-9), HEIGHT - BOTTOM, TOP)
    width = (WIDTH - LEFT - RIGHT) / len(names)
    parts = [f'<text x="{LEFT}" y="{TOP}">{html.escape(unit)}</text>',
             f'<path class="grid" d="M{LEFT} {y_scale(0)}H{WIDTH - RIGHT}"/>']
    for bar, (name, note) in enumerate(zip(names, notes)):
        x, begin = LEFT + (bar + 0.25) * width, 0
        for colour, values in zip(colours, stacks.values()):
            y, height = y_scale(begin + values[bar]), y_scale(begin) - y_scale(begin + values[bar])
            begin += values[bar]
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width / 2:.1f}" '
                         f'height="{height:.1f}" fill="{colour}"/>')
        for text, y in ((note, y_scale(begin) - 8), (name, HEIGHT - BOTTOM + 20)):
            parts.append(f'<text x="{x + width / 4:.1f}" y="{y:.1f}" text-anchor="middle">'
                         f"{html.escape(text)}</text>")
    return parts


def differences(run, reference):
    floor = 1e-9  # A logarithmic axis cannot show a difference of zero.
    return [max(abs(ours - theirs), floor)
            for ours, theirs in zip(run.column("loss"), reference.column("loss"))]


def charts(runs, summaries):
    """Returns (title, drawing, colours and names of the lines) for each chart."""
    losses = {run.label(): run.column("loss") for run in runs}
    apart = {run.label(): differences(run, runs[0]) for run in runs[1:]}
    speeds = [item["samples_per_second"] for item in summaries]
    several = summaries[1:]
    costs = [1e3 * item["exposed_seconds"] for item in several]
    times = [1e3 * item["step_seconds"] for item in several]
    parts = {"what communication costs it": costs,
             "everything else": [ms - cost for ms, cost in zip(times, costs)]}
    labels = [run.label() for run in runs]
    return [
        ("Loss on the same global batches", steps_drawing(losses, COLOURS, "loss"),
         list(zip(COLOURS, losses))),
        ("Throughput", bars_drawing(
            {"": speeds}, COLOURS[1:], labels,
            [f"{speed:.0f}, {speed / speeds[0]:.2f}x" for speed in speeds],
            "images per second"), []),
        ("How far they lie apart from 1 process",
         steps_drawing(apart, COLOURS[1:], "|difference| of the loss"),
         list(zip(COLOURS[1:], apart))),
        ("Time of a step", bars_drawing(
            parts, PART_COLOURS, labels[1:],
            [f"{cost:.1f} of {ms:.1f} ms" for cost, ms in zip(costs, times)], "ms"),
         list(zip(PART_COLOURS, parts))),
    ]


def said(start):
    return (f"{start['model'].upper()} with {start['parameters']:,} parameters on handwritten "
            f"digits; global batch {start['global_batch']}; every process computes with "
            f"{start['threads']} thread; this host has {os.cpu_count()} cores")


def picture(start, drawn):
    """Returns the charts as one SVG, two side by side, with the names of lines below their
    titles."""
    width, height = 2 * WIDTH + 3 * GAP, 2 * (HEIGHT + HEAD + GAP) + HEAD
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>'
             f'<text x="{GAP}" y="34" style="font-size:24px;font-weight:600">One model, one curve, '
             'any number of processes</text>'
             f'<text x="{GAP}" y="60">{html.escape(said(start))}</text>']
    for i, (title, inner, names) in enumerate(drawn):
        x = GAP + (i % 2) * (WIDTH + GAP)
        y = HEAD + GAP + (i // 2) * (HEIGHT + HEAD + GAP)
        legend = "".join(f'<tspan style="fill:{colour}" dx="8">&#9679; {html.escape(name)}</tspan>'
                         for colour, name in names)
        parts.append(f'<text x="{x}" y="{y + 8}" style="font-weight:600">{title}</text>'
                     f'<text x="{x}" y="{y + 28}">{legend}</text>'
                     f'<svg x="{x}" y="{y + HEAD - 28}" width="{WIDTH}" height="{HEIGHT}">'
                     f'{"".join(inner)}</svg>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
            f"<style>{STYLE}</style>{''.join(parts)}</svg>\n")


def write(folder, runs, summaries, claims):
    """Writes report.svg and summary.json; returns the path of report.svg."""
    path = folder / "report.svg"
    path.write_text(picture(runs[0].start, charts(runs, summaries)), encoding="utf-8")
    (folder / "summary.json").write_text(
        json.dumps({"claims": claims, "runs": summaries}, indent=2) + "\n", encoding="utf-8")
    return path

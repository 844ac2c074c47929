#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Draws measurements as one page of HTML that needs nothing else: what `stretto bench --json` has
printed, or (bench/peers.py --html) a comparison with other libraries. Its charts are those of the
demo's picture, too."""

import argparse
import dataclasses
import html
import json
import math
import statistics
import sys

import figures
import peers_table

EXAMPLE = "example: stretto bench --json | python3 bench/page.py > bench.html"
STYLE = """
:root{color-scheme:light dark;--soft:#78808a;--faint:#8884;--c0:#d9541e;--c1:#e89a6a;--c2:#b07d62;
--c3:#2f7fc1;--c4:#7fb0d8;--c5:#3c9a5f;--c6:#8fb386;--c7:#8a6bc0;--c8:#b8963a;--c9:#8a8f98}
body{max-width:1180px;margin:0 auto;padding:32px 20px;font:15px/1.5 system-ui,sans-serif}
p{max-width:78ch}.soft,figcaption,th{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:16px}
figure{margin:0;border:1px solid var(--faint);border-radius:8px;padding:14px;min-width:0}
figure.large{grid-column:1/-1}.scroll{overflow-x:auto}svg{width:100%;min-width:500px}
.grid{stroke:var(--faint)}svg text{fill:currentColor;font-size:12px}.line{fill:none;stroke-width:2}
.bar{opacity:.45}.dot{fill:currentColor}.hollow{fill:none}g{stroke:currentColor}g text{stroke:none}
.level{stroke:var(--soft)}.aim{stroke:var(--c5);stroke-dasharray:2 4}.least{stroke-dasharray:7 4}
.pale{opacity:.55}.legend span{margin-right:1.2em;white-space:nowrap}.legend{font-size:13px}
table{border-collapse:collapse;font-size:13px;white-space:nowrap}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid var(--faint)}
th:first-child,td:first-child,.wide td,.wide th{text-align:left}.wide td{white-space:normal}
.best{font-weight:600}.good{color:var(--c5)}.bad{color:#d33}summary{cursor:pointer}
"""
# Of each chart of `stretto bench`: the key of a line, the title and what the vertical axis says.
CHARTS = (("p50_us", "Time, microseconds", "us"), ("busbw_gbps", "Bus bandwidth", "GB/s"),
          ("efficiency", "Speed of copies over speed of the all-reduce", "of copies"))
COLUMNS = ("bytes", "buffers", "p50_us", "p99_us", "max_us", "algbw_gbps", "busbw_gbps",
           "efficiency", "regime", "check", "algorithm")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 64, 12, 12, 44
COLOURS = 10


@dataclasses.dataclass
class Point:
    x: float
    y: float
    low: float = 0.0  # A bar from low to high, if both are given.
    high: float = 0.0
    hollow: bool = False
    title: str = ""  # Shown where the pointer rests.


@dataclasses.dataclass
class Level:
    """A horizontal line over a range of x."""

    first: float
    last: float
    y: float
    style: str


def escape(text):
    return html.escape(str(text))


def scale(values, begin, end, room):
    """From values to pixels, logarithmically, with room for a factor at both ends."""
    low, high = math.log(min(values) / room), math.log(max(values) * room)
    return lambda value: begin + (math.log(value) - low) / (high - low) * (end - begin)


def linear(low, high, begin, end):
    return lambda value: begin + (value - low) / (high - low or 1) * (end - begin)


def axes(x_scale, y_scale, sizes, ys, unit, name_of=figures.size_text):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    first, last = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0 ** power for power in range(first, last + 1) for step in steps]
    parts = [f'<text x="{LEFT}" y="{TOP}">{escape(unit)}</text>']
    for tick, y in ((tick, y_scale(tick)) for tick in ticks):
        if TOP <= y <= bottom:
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/><text x="{LEFT - 8}" '
                         f'y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    free = -math.inf
    for size, x in ((size, x_scale(size)) for size in sizes):
        parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/>')
        if x >= free:
            free = x + 48
            parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
                         f"{name_of(size)}</text>")
    return parts


def curve(colour, points, x_scale, y_scale, dash=""):
    places = [(x_scale(point.x), y_scale(point.y), point) for point in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
    parts = [f'<path class="line"{dash} d="M{path}"/>']
    for x, y, point in places if not dash else ():
        if point.high > point.low > 0:
            parts.append(f'<path class="bar" d="M{x:.1f} {y_scale(point.high):.1f}'
                         f'V{y_scale(point.low):.1f}"/>')
        parts.append(f'<circle class="{"hollow" if point.hollow else "dot"}" cx="{x:.1f}" '
                     f'cy="{y:.1f}" r="3.2"><title>{escape(point.title)}</title></circle>')
    return f'<g style="color:var(--c{colour})">{"".join(parts)}</g>'


def svg(parts, title, place='style="width:100%"'):
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {place} role="img" aria-label="{escape(title)}">'
            f'{"".join(parts)}</svg>')


def figure(parts, names, title, caption, style=""):
    """A drawing with its title, and the names of what it draws, a colour each."""
    legend = "".join(f'<span style="color:var(--c{colour})">&#9679; {escape(name)}</span>'
                     for colour, name in names)
    return (f'<figure class="{style}"><h3>{escape(title)}</h3><div class="scroll">'
            f'{svg(parts, title)}</div><p class="legend">{legend}</p>'
            f"<figcaption>{escape(caption)}</figcaption></figure>")


def steps_drawing(lines, colours, unit):
    """What chart() draws, of lines over the steps of a training: the horizontal axis is linear. The
    lines may lie on each other: they are broken, so that all are seen."""
    points = [point for line in lines.values() for point in line]
    last = max(point.x for point in points)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10 ** 9)
                if last / step <= 8)
    x_scale = linear(0, last, LEFT, WIDTH - RIGHT)
    y_scale = scale([point.y for point in points], HEIGHT - BOTTOM, TOP, 1.25)
    parts = axes(x_scale, y_scale, range(0, int(last) + 1, step), [point.y for point in points],
                 unit, str)
    for i, (line, colour) in enumerate(zip(lines.values(), colours)):
        dash = f' stroke-dasharray="9 {9 * (len(lines) - 1)}" stroke-dashoffset="{-9 * i}"'
        parts.append(curve(colour, line, x_scale, y_scale, dash))
    return parts


def bars_drawing(stacks, colours, names, notes, unit):
    """Bars from zero: of each part ({name: a value for each bar}) a piece, one upon the other; with
    a name below each bar and a note above it."""
    tops = [sum(values) for values in zip(*stacks.values())]
    y_scale = linear(0, 1.25 * max(*tops, 1e-9), HEIGHT - BOTTOM, TOP)
    width = (WIDTH - LEFT - RIGHT) / len(names)
    parts = [f'<text x="{LEFT}" y="{TOP}">{escape(unit)}</text>',
             f'<path class="grid" d="M{LEFT} {y_scale(0)}H{WIDTH - RIGHT}"/>']
    for bar, (name, note) in enumerate(zip(names, notes)):
        x, begin = LEFT + (bar + 0.25) * width, 0
        for colour, values in zip(colours, stacks.values()):
            y, height = y_scale(begin + values[bar]), y_scale(begin) - y_scale(begin + values[bar])
            begin += values[bar]
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width / 2:.1f}" '
                         f'height="{height:.1f}" style="fill:var(--c{colour})"/>')
        for text, y in ((note, y_scale(begin) - 8), (name, HEIGHT - BOTTOM + 20)):
            parts.append(f'<text x="{x + width / 4:.1f}" y="{y:.1f}" text-anchor="middle">'
                         f"{escape(text)}</text>")
    return parts


def chart(lines, levels, sizes, unit, title, caption, style="", name_of=figures.size_text):
    """A figure of lines ({name: points}) over sizes, both axes logarithmic; empty text if there is
    nothing to draw. Levels are drawn below the lines; `name_of` writes what is below the axis."""
    lines = [(i % COLOURS, name, points)
             for i, (name, points) in enumerate(lines.items()) if points]
    if not lines:
        return ""
    ys = [y for _, _, points in lines for point in points
          for y in (point.y, point.low, point.high) if y > 0] + [level.y for level in levels]
    x_scale = scale(sizes, LEFT, WIDTH - RIGHT, 1.6)
    y_scale = scale(ys, HEIGHT - BOTTOM, TOP, 1.25)
    parts = axes(x_scale, y_scale, sizes, ys, unit, name_of)
    for level in levels:
        # A little wider than its range, so that a goal for one size can be seen.
        ends = [x_scale(min(max(x, min(sizes)), max(sizes))) for x in (level.first, level.last)]
        parts.append(f'<path class="level {level.style}" d="M{ends[0] - 10:.1f} '
                     f'{y_scale(level.y):.1f}H{ends[1] + 10:.1f}"/>')
    parts += [curve(colour, points, x_scale, y_scale) for colour, _, points in reversed(lines)]
    return figure(parts, [line[:2] for line in lines], title, caption, style)


@dataclasses.dataclass(frozen=True)
class Axis:
    """What depends on what: `key` says which of a line's numbers is on the horizontal axis."""

    key: str
    title: str
    caption: str
    name_of: object = str  # Of a place on that axis.


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def range_chart(found, axis, unit):
    """Medians and ranges of what was measured: {name: {place on the axis: values}}."""
    curves = {}
    for name, of in found.items():
        for x, values in sorted(of.items()):
            middle = statistics.median(values)
            title = f"{name}, {axis.name_of(x)}: {number(middle)} {unit}"
            curves.setdefault(name, []).append(
                Point(x, middle, min(values), max(values), title=title))
    places = sorted({x for of in found.values() for x in of})
    return chart(curves, [], places, unit, f"{axis.title}, {unit}",
                 f"{axis.caption}; medians, and the range.", name_of=axis.name_of)


def plots(charts):
    return f'<div class="plots">{"".join(charts)}</div>'


def usual(regimes):
    """The regime of most; points of another one are drawn hollow."""
    return max(set(regimes), key=regimes.count)


def cell_point(row, cell, regime):
    low, high = cell.spread
    way = f", {cell.way()}" if cell.way() else ""
    title = (f"{cell.system} ({cell.buffers}{way}), {figures.size_text(row.bytes)}: "
             f"{peers_table.time_text(cell.p50_us)} us "
             f"({peers_table.time_text(low)} to {peers_table.time_text(high)}), "
             f"p99 {peers_table.time_text(cell.p99_us)} us, {row.regime}")
    return Point(row.bytes, max(cell.p50_us, 0.01), hollow=row.regime != regime, title=title)


def ratio_point(row, ratio, regime):
    title = (f"{figures.size_text(row.bytes)}: {ratio.text()} times {ratio.against.system} "
             f"({ratio.spread_text()}), {row.regime}")
    return Point(row.bytes, ratio.value, ratio.low, ratio.high, row.regime != regime, title)


def peers_time_lines(main, run, regime):
    lines = {f"stretto, {kind}": [cell_point(row, row.ours(kind), regime)
                                  for row in main if row.ours(kind)] for kind in figures.KINDS}
    for entry in run["systems"]:
        if entry["name"] != "stretto":
            best = [(row, row.best(system=entry["name"])) for row in main]
            lines[entry["title"]] = [cell_point(row, cell, regime) for row, cell in best if cell]
    return lines


def goal_levels(rows, family, regime):
    sizes = [row.bytes for row in rows]
    levels = [Level(min(sizes), max(sizes), 1, "")]
    for kind, pale in (("registered", ""), ("private", " pale")):
        for goal in figures.goals(rows[0].operation, regime, kind, family):
            if any(goal.first <= size <= goal.last for size in sizes):
                levels.append(Level(goal.first, goal.last, goal.least, "least" + pale))
                levels.append(Level(goal.first, goal.last, goal.aim, "aim" + pale))
    return levels


def peers_plots(operation, rows, run):
    sizes = sorted({row.bytes for row in rows})
    if len(sizes) < 2:
        return ""
    main = figures.main_rows(rows)
    regime = usual([row.regime for row in main])
    charts = [chart(peers_time_lines(main, run, regime), [], sizes, "us",
                    f"Time of {operation}, microseconds",
                    "Lower is better. Of each system the fastest of its ways to run.", "large")]
    for family, name in (("mpi", "the best MPI"), ("gloo", "Gloo")):
        ratios = {kind: [ratio_point(row, ratio, regime) for row in main
                         if (ratio := row.ratio(kind, family))] for kind in figures.KINDS}
        charts.append(chart(ratios, goal_levels(rows, family, regime), sizes, "times",
                            f"How many times faster than {name}",
                            "Higher is better; bars: lowest and highest repeat. Dashed: wanted at "
                            "least; green dots: the aim (paler: for private buffers)."))
    return plots(charts)


def verdict_class(text):
    return {"+": "good", "-": "bad"}.get(text[-1:], "")


def html_table(heads, rows):
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = ""
    for row in rows:
        cells = ""
        for text in row:
            style = "best" if text.endswith("*") else verdict_class(text) if "(" in text else ""
            shown = text.rstrip(" *+-.") if "(" in text or text.endswith(("*", " ")) else text
            cells += f'<td class="{style}">{escape(shown or "-")}</td>'
        body += f"<tr>{cells}</tr>"
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def peers_section(operation, rows, run):
    names = [entry["name"] for entry in run["systems"]]
    columns = peers_table.Columns(rows, names)
    times = html_table(columns.time_heads(), [columns.times(row) for row in rows])
    ratios = html_table(columns.ratio_heads(), [columns.ratio_texts(row) for row in rows])
    drawn = peers_plots(operation, rows, run)
    tables = times + ratios
    if drawn:
        tables = f"<details><summary>Figures</summary>{tables}</details>"
    return f"<h2>{escape(operation.replace('_', '-'))}</h2>{drawn}{tables}"


def systems_table(run):
    rows = "".join(
        f"<tr><td>{escape(entry['name'])}</td><td>{escape(entry['version'] or '?')}</td>"
        f"<td>{escape(entry['settings'])}</td><td>{escape('; '.join(entry['notes']))}</td></tr>"
        for entry in run["systems"])
    rows += "".join(f"<tr><td>{escape(name)}</td><td>not here</td><td></td>"
                    f"<td>{escape(reason)}</td></tr>" for name, reason in run["missing"].items())
    return ('<div class="scroll"><table class="wide"><tr><th>system</th><th>version</th>'
            f"<th>settings</th><th>what went wrong</th></tr>{rows}</table></div>")


def regimes_sentence(rows):
    counts = {}
    for row in rows:
        for cell in row.cells:
            counts[row.regime] = counts.get(row.regime, 0) + len(cell.p50s)
    total = sum(counts.values()) or 1
    shares = ", ".join(f"{100 * count / total:.0f} % {regime}" for regime, count
                       in sorted(counts.items(), key=lambda item: -item[1]))
    return (f"Lines by regime: {shares}. Near and far say whether the cores of ranks 0 and 1 share "
            "a cache (a flag takes less than 110 ns one way); only lines of one regime are "
            "compared, and hollow points are not of the regime of most sizes.")


def whole(title, facts, body):
    """A page as one text that needs nothing else; `facts` and `body` are HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class="soft">{facts}</p>
{body}
</main></body></html>
"""


def peers_page(run, rows, lines):
    machine = run["machine"]
    sections = "".join(
        peers_section(operation, [row for row in rows if row.operation == operation], run)
        for operation in dict.fromkeys(row.operation for row in rows))
    failed = sum("error" in line and not line["error"].startswith("unsupported") for line in lines)
    failures = f" {failed} of {len(lines)} lines have failed." if failed else ""
    facts = f"""{run['ranks']} ranks on {machine['cores']} cores of {escape(machine['cpu'])},
L3 {escape(machine['l3'])}, {machine['memory_gib']} GiB; float32 sums; medians of
{run['repeats']} repeats, all systems in turns; {escape(run['date'])}, commit
{escape(run['commit'])}"""
    return whole("stretto and its peers", facts, f"""
<p>{escape(regimes_sentence(rows))}{failures}</p>
{sections}
<h2>Systems and settings</h2>{systems_table(run)}
<p class="soft">{escape(run['command'])}</p>""")


def bench_points(lines, key, regime):
    """One point for each size: the median of its repeats."""
    points = []
    for size in sorted({line["bytes"] for line in lines}):
        repeats = [line for line in lines if line["bytes"] == size and line[key]]
        if not repeats:
            continue
        middle = statistics.median(line[key] for line in repeats)
        title = "; ".join(f"{name} {repeats[0][name]}" for name in COLUMNS)
        hollow = any(line["regime"] != regime for line in repeats)
        points.append(Point(size, middle, hollow=hollow, title=title))
    return points


def bench_section(operation, lines):
    rows = [["" if line[key] is None else str(line[key]) for key in COLUMNS] for line in lines]
    lines = [line for line in lines if line["bytes"] > 0]
    sizes = sorted({line["bytes"] for line in lines})
    charts = []
    if len(sizes) > 1:
        regime = usual([line["regime"] for line in lines])
        caption = f"Medians; rings were not measured with the cores {regime}."
        for key, title, unit in CHARTS:
            curves = {kind: bench_points([line for line in lines if line["buffers"] == kind], key,
                                         regime) for kind in figures.KINDS}
            charts.append(chart(curves, [], sizes, unit, title, caption))
    return f"<h2>{escape(operation)}</h2>{plots(charts)}{html_table(COLUMNS, rows)}"


def bench_page(lines):
    first = lines[0]
    operations = dict.fromkeys(line["operation"] for line in lines)
    sections = "".join(bench_section(name, [line for line in lines if line["operation"] == name])
                       for name in operations)
    facts = f"{first['ranks']} ranks over {first['transport']}, stretto {first['version']}"
    return whole("stretto bench", escape(facts), sections)


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument("file", nargs="?", type=argparse.FileType(), default=sys.stdin,
                        help="lines of JSON [standard input]")
    lines = [json.loads(text) for text in parser.parse_args(words).file if text.strip()]
    if not lines:
        print("bench/page.py: no line of JSON came; " + EXAMPLE, file=sys.stderr)
        return 2
    print(bench_page(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

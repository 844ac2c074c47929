# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0
"""The picture and the page of ./dev demo."""

import html
import json
import os
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import page as drawing  # noqa: E402

GAP, HEAD = 24, 72  # Between the charts of the picture, and what is above them.
COLOURS = (9, 3, 0, 5, 7)  # Of 1 process and of more, as bench/page.py counts them.
STYLE = """pre{background:var(--faint);padding:12px;overflow-x:auto}li{margin:3px 0}"""


def differences(run, reference):
    floor = 1e-9  # A difference of zero has no place on a logarithmic axis.
    return [max(abs(ours - theirs), floor)
            for ours, theirs in zip(run.column("loss"), reference.column("loss"))]


def points(values):
    return [drawing.Point(step, value) for step, value in enumerate(values)]


def charts(runs, summaries):
    """(title, drawing, colours and names of what it draws), for the page and for the picture."""
    losses = {run.label(): points(run.column("loss")) for run in runs}
    apart = {run.label(): points(differences(run, runs[0])) for run in runs[1:]}
    speeds = [item["samples_per_second"] for item in summaries]
    several = summaries[1:]
    costs = [1e3 * item["exposed_seconds"] for item in several]
    times = [1e3 * item["step_seconds"] for item in several]
    parts = {"what communication costs it": costs,
             "everything else": [ms - cost for ms, cost in zip(times, costs)]}
    labels = [run.label() for run in runs]
    of_parts = (0, 4)
    return [
        ("Loss on the same global batches", drawing.steps_drawing(losses, COLOURS, "loss"),
         list(zip(COLOURS, losses))),
        ("Throughput", drawing.bars_drawing(
            {"": speeds}, COLOURS[1:], labels,
            [f"{speed:.0f}, {speed / speeds[0]:.2f}x" for speed in speeds],
            "images per second"), []),
        ("How far they lie apart from 1 process",
         drawing.steps_drawing(apart, COLOURS[1:], "|difference| of the loss"),
         list(zip(COLOURS[1:], apart))),
        ("Time of a step", drawing.bars_drawing(
            parts, of_parts, labels[1:],
            [f"{cost:.1f} of {ms:.1f} ms" for cost, ms in zip(costs, times)], "ms"),
         list(zip(of_parts, parts))),
    ]


def said(start):
    return (f"{start['model'].upper()} with {start['parameters']:,} parameters on handwritten "
            f"digits; global batch {start['global_batch']}; every process computes with "
            f"{start['threads']} thread; this host has {os.cpu_count()} cores")


def picture(start, drawn):
    """The charts as one SVG, two beside each other, with the names of lines below their titles."""
    width, height = 2 * drawing.WIDTH + 3 * GAP, 2 * (drawing.HEIGHT + HEAD + GAP) + HEAD
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>'
             f'<text x="{GAP}" y="34" style="font-size:24px;font-weight:600">One model, one curve, '
             'any number of processes</text>'
             f'<text x="{GAP}" y="60">{html.escape(said(start))}</text>']
    for i, (title, inner, names) in enumerate(drawn):
        x = GAP + (i % 2) * (drawing.WIDTH + GAP)
        y = HEAD + GAP + (i // 2) * (drawing.HEIGHT + HEAD + GAP)
        legend = "".join(f'<tspan style="fill:var(--c{colour})" dx="8">&#9679; '
                         f"{html.escape(name)}</tspan>" for colour, name in names)
        place = f'x="{x}" y="{y + HEAD - 28}" width="{drawing.WIDTH}" height="{drawing.HEIGHT}"'
        parts.append(f'<text x="{x}" y="{y + 8}" style="font-weight:600">{title}</text>'
                     f'<text x="{x}" y="{y + 28}">{legend}</text>'
                     f"{drawing.svg(inner, title, place)}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
            f"<style>{drawing.STYLE}svg{{color:#1f2328;font-family:sans-serif}}"
            f"svg svg{{width:{drawing.WIDTH}px;min-width:0}}</style>"
            f"{''.join(parts)}</svg>\n")


def table(summaries):
    head = ("processes", "images/s", "step (ms)", "communication (ms)", "its cost (ms)",
            "largest difference of loss", "read correctly")
    rows = []
    for item in summaries:
        several = item["processes"] > 1
        cells = [str(item["processes"]), f"{item['samples_per_second']:.0f}",
                 f"{item['step_seconds'] * 1e3:.1f}"]
        cells += [f"{item['communication_seconds'] * 1e3:.1f}",
                  f"{item['exposed_seconds'] * 1e3:.1f}",
                  f"{item['max_loss_difference']:.1e}"] if several else ["-"] * 3
        cells.append(f"{item['test_accuracy']:.1%}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return ("<table><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" +
            "".join(rows) + "</table>")


def page(start, drawn, summaries, claims, next_steps):
    checked = "".join(f"<li>{html.escape(claim)}</li>" for claim in claims)
    commands = html.escape("\n".join(item["command"] for item in summaries))
    further = html.escape("\n".join(f"{command}   # {what}" for what, command in next_steps))
    links = "; ".join(f"{item['processes']} processes: {item['links']}" for item in summaries[1:])
    shown = drawing.plots(drawing.figure(inner, names, title, "")
                          for title, inner, names in drawn)
    return drawing.whole("stretto: a model trained by one process and by several",
                         html.escape(said(start)), f"""<style>{STYLE}</style>{shown}
<h2>Checked in this run</h2><ul>{checked}</ul>
<h2>Numbers</h2><div class="scroll">{table(summaries)}</div>
<p class="soft">Means over all steps but the first few; images/s are their median. Communication
lasts from the first bucket that leaves to the last one that is reduced. Its cost is the time that
it takes from computing: waiting at the end of backward(), copying gradients, sending buffers and
starting operations, some of it before the first bucket or after the last. More processes than cores
share cores, and cannot be faster than one process per core. Links: {html.escape(links)}.
{html.escape(platform.platform())}, {os.cpu_count()} cores.</p>
<h2>Commands</h2><pre>{commands}</pre>
<h2>Try next</h2><pre>{further}</pre>""")


def write(folder, runs, summaries, claims, next_steps):
    """Writes report.svg, report.html and summary.json; returns the paths of the first two."""
    paths = {"svg": folder / "report.svg", "html": folder / "report.html"}
    drawn = charts(runs, summaries)
    paths["svg"].write_text(picture(runs[0].start, drawn), encoding="utf-8")
    paths["html"].write_text(page(runs[0].start, drawn, summaries, claims, next_steps),
                             encoding="utf-8")
    (folder / "summary.json").write_text(
        json.dumps({"claims": claims, "runs": summaries}, indent=2) + "\n", encoding="utf-8")
    return paths

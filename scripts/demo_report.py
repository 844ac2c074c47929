# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0
"""The picture and the page of ./dev demo."""

import base64
import html
import json
import os
import platform

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend has to be chosen first)

INK, MUTED, GRID = "#1f2328", "#59636e", "#e4e7eb"
COLORS = ["#b9c2cc", "#2166c4", "#d9541e", "#1a8a5c", "#8250c4"]
HIDDEN, EXPOSED = "#a9c8ef", "#d9541e"


def style_axes(axes, title, y_label):
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=8)
    axes.set_ylabel(y_label, color=MUTED, fontsize=9)
    axes.tick_params(which="both", colors=MUTED, labelsize=9, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def draw_losses(axes, runs):
    """The curve of 1 process as a broad band; the others lie on it as broken lines."""
    style_axes(axes, "Loss on the same global batches", "loss (log scale)")
    for i, run in enumerate(runs):
        band = i == 0
        offset = 4.0 * (i - 1)
        axes.plot(run.column("loss"), color=COLORS[i % len(COLORS)], label=run.label(),
                  linewidth=5 if band else 1.4, solid_capstyle="round", zorder=1 if band else 2,
                  linestyle="-" if band else (offset, (4, 4 * max(1, len(runs) - 2))))
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.8 * min(run.column("loss").min() for run in runs))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper right")
    axes.tick_params(labelbottom=False)


def draw_differences(axes, runs):
    style_axes(axes, "How far they lie apart", "|difference|")
    floor = 1e-9  # A difference of zero has no place on a logarithmic axis.
    for i, run in enumerate(runs[1:], start=1):
        difference = np.abs(run.column("loss") - runs[0].column("loss"))
        axes.plot(np.maximum(difference, floor), color=COLORS[i % len(COLORS)], linewidth=1.2)
    axes.set_yscale("log")
    axes.set_ylim(floor, 1e-1)
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(numticks=5))
    axes.set_xlabel("step", color=MUTED, fontsize=9)


def draw_throughput(axes, summaries):
    style_axes(axes, "Throughput", "images per second")
    values = [item["samples_per_second"] for item in summaries]
    bars = axes.bar(range(len(values)), values, width=0.55, color=COLORS[:len(values)])
    for bar, value in zip(bars, values):
        axes.annotate(f"{value:.0f}\n{value / values[0]:.2f}x", (bar.get_x() + bar.get_width() / 2,
                      value), ha="center", va="bottom", fontsize=9, color=INK,
                      xytext=(0, 3), textcoords="offset points")
    axes.set_ylim(0, 1.3 * max(values))
    name_bars(axes, summaries)


def draw_communication(axes, summaries):
    """Of each step's communication, how much backward hid and how much it did not."""
    style_axes(axes, "Communication per step", "milliseconds")
    exposed = np.array([item["exposed_seconds"] for item in summaries]) * 1e3
    total = np.array([item["communication_seconds"] for item in summaries]) * 1e3
    hidden = np.maximum(total - exposed, 0)
    places = range(len(summaries))
    axes.bar(places, exposed, width=0.55, color=EXPOSED, label="exposed: the step waits for it")
    axes.bar(places, hidden, bottom=exposed, width=0.55, color=HIDDEN,
             label="hidden behind backward")
    for place, item in enumerate(summaries):
        share = item["exposed_share_of_communication"]
        axes.annotate(f"{share:.0%} exposed", (place, max(exposed[place], total[place])),
                      ha="center", va="bottom", fontsize=9, color=INK, xytext=(0, 3),
                      textcoords="offset points")
    axes.set_ylim(0, 1.45 * max(max(total), max(exposed), 1e-6))
    axes.set_xlim(-0.75, len(summaries) - 0.25)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
    name_bars(axes, summaries)


def name_bars(axes, summaries):
    axes.set_xticks(range(len(summaries)))
    axes.set_xticklabels(["1 process" if item["processes"] == 1 else
                          f"{item['processes']} processes" for item in summaries])


def draw(path, runs, summaries):
    figure = pyplot.figure(figsize=(11.5, 6.6), dpi=150, facecolor="white")
    grid = figure.add_gridspec(1, 2, width_ratios=[1.75, 1], wspace=0.2, left=0.07, right=0.98,
                               top=0.86, bottom=0.09)
    left = grid[0].subgridspec(2, 1, height_ratios=[2.6, 1], hspace=0.22)
    right = grid[1].subgridspec(2, 1, hspace=0.42)
    losses = figure.add_subplot(left[0])
    draw_losses(losses, runs)
    draw_differences(figure.add_subplot(left[1], sharex=losses), runs)
    draw_throughput(figure.add_subplot(right[0]), summaries)
    draw_communication(figure.add_subplot(right[1]), summaries[1:])
    start = runs[0].start
    figure.suptitle("One model, one curve, any number of processes", x=0.02, y=0.975, ha="left",
                    fontsize=15, fontweight="bold", color=INK)
    figure.text(0.02, 0.915, f"{start['model'].upper()} with {start['parameters']:,} parameters on "
                f"handwritten digits; global batch {start['global_batch']}; every process computes "
                f"with {start['threads']} thread; this host has {os.cpu_count()} cores",
                fontsize=9.5, color=MUTED, ha="left")
    figure.savefig(path)
    pyplot.close(figure)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 72rem; margin: 2rem auto;
       padding: 0 1.5rem; }
img { width: 100%; height: auto; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.35rem 0.9rem 0.35rem 0; text-align: right; border-bottom: 1px solid #e4e7eb; }
th:first-child, td:first-child { text-align: left; }
code, pre { font: 0.85rem ui-monospace, monospace; } pre { background: #f6f8fa; padding: 0.8rem;
overflow-x: auto; } li { margin: 0.2rem 0; } .muted { color: #59636e; font-size: 0.9rem; }
"""


def table(summaries):
    head = ("processes", "images/s", "step (ms)", "communication (ms)", "exposed (ms)",
            "exposed share", "largest difference of loss", "read correctly")
    rows = []
    for item in summaries:
        several = item["processes"] > 1
        cells = [str(item["processes"]), f"{item['samples_per_second']:.0f}",
                 f"{item['step_seconds'] * 1e3:.1f}"]
        cells += [f"{item['communication_seconds'] * 1e3:.1f}",
                  f"{item['exposed_seconds'] * 1e3:.1f}",
                  f"{item['exposed_share_of_communication']:.0%}",
                  f"{item['max_loss_difference']:.1e}"] if several else ["-"] * 4
        cells.append(f"{item['test_accuracy']:.1%}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return ("<table><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" +
            "".join(rows) + "</table>")


def page(image, summaries, claims, next_steps):
    picture = base64.b64encode(image).decode()
    checked = "".join(f"<li>{html.escape(claim)}</li>" for claim in claims)
    commands = html.escape("\n".join(item["command"] for item in summaries))
    further = html.escape("\n".join(f"{command}   # {what}" for what, command in next_steps))
    links = html.escape("; ".join(f"{item['processes']} processes: {item['links']}"
                                  for item in summaries[1:]))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>stretto demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>stretto: a model trained by one process and by several</h1>
<img alt="Loss curves, throughput and communication" src="data:image/png;base64,{picture}">
<h2>Checked in this run</h2><ul>{checked}</ul>
<h2>Numbers</h2><div class="scroll">{table(summaries)}</div>
<p class="muted">Means over all steps but the first few; images/s are their median. Communication
lasts from the first bucket that leaves to the last one that is reduced; exposed is what backward()
waited for after its own work was done. More processes than cores share cores, and cannot be faster
than one process per core. Links: {links}. {html.escape(platform.platform())},
{os.cpu_count()} cores.</p>
<h2>Commands</h2><pre>{commands}</pre>
<h2>Try next</h2><pre>{further}</pre></body></html>
"""


def write(folder, runs, summaries, claims, next_steps):
    """Writes report.png, report.html and summary.json; returns the paths of the first two."""
    paths = {"png": folder / "report.png", "html": folder / "report.html"}
    draw(paths["png"], runs, summaries)
    paths["html"].write_text(page(paths["png"].read_bytes(), summaries, claims, next_steps),
                             encoding="utf-8")
    (folder / "summary.json").write_text(
        json.dumps({"claims": claims, "runs": summaries}, indent=2) + "\n", encoding="utf-8")
    return paths

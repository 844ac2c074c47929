# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The page of bench/peers.py: self-contained HTML with a plot of times and one of ratios for each
operation."""

import html

import figures
import chart
import peers_table

STYLE = """
:root{color-scheme:light dark;--paper:#fbfbf9;--ink:#1d2329;--soft:#69727c;--faint:#dfe2e4;
--card:#fff;--ours:#c2410c;--ours2:#e08a5b;--ours3:#f0b795;--a:#2f6690;--b:#6a9fb5;--c:#4b7f52;
--d:#8fb386;--e:#7d5ba6;--f:#b08a2e;--g:#8a8f98;--bound:#9aa0a6;--good:#2e7d4f;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--soft:#9aa4ae;
--faint:#2c3238;--card:#1b1f23;--ours:#ff8a4c;--ours2:#d97b4a;--ours3:#9c6243;--a:#6fb1e0;
--b:#4f8199;--c:#7cc084;--d:#5b7d57;--e:#b794e0;--f:#d9b55a;--g:#7c838c;--bound:#6d747b;
--good:#6fcf97;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:20px;margin:44px 0 8px}
h3{font-size:14px;font-weight:600;margin:0 0 6px}p{margin:4px 0 10px;max-width:78ch}
.soft,figcaption{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--faint);border-radius:8px;
padding:14px 14px 10px;min-width:0}figure.large{grid-column:1/-1}
.plot{overflow-x:auto}svg{width:100%;min-width:500px;height:auto;display:block}
.grid{stroke:var(--faint)}.tick,.axis,.level-word{fill:var(--soft);font-size:12px}
.name{font-size:12.5px;fill:currentColor}.line{fill:none;stroke:currentColor;stroke-width:1.6}
.leader{fill:none;stroke:currentColor;stroke-width:.7;opacity:.5}
.bar{stroke:currentColor;stroke-width:1.4;opacity:.45}
.dot{fill:currentColor}.hollow{fill:var(--card);stroke:currentColor;stroke-width:1.4}
.ours .line,.ours2 .line{stroke-width:2.6}.ours .name,.ours2 .name{font-weight:600}
.ours{color:var(--ours)}.ours2{color:var(--ours2)}.ours3{color:var(--ours3)}
.a{color:var(--a)}.b{color:var(--b)}.c{color:var(--c)}.d{color:var(--d)}.e{color:var(--e)}
.f{color:var(--f)}.g,.h{color:var(--g)}.ours4{color:var(--ours2)}.h .line{stroke-dasharray:3 3}
.ours4 .line{stroke-dasharray:2 3}
.bound,.bare{color:var(--bound)}.bound .line{stroke-dasharray:2 4}
.bare .line{stroke-dasharray:8 3 2 3}
.ours3 .line,.b .line,.d .line{stroke-dasharray:6 3}
.level{stroke-width:1.6}.one{stroke:var(--soft)}.least{stroke:var(--soft);stroke-dasharray:7 4}
.aim{stroke:var(--good);stroke-dasharray:2 4}.least2{stroke:var(--soft);stroke-dasharray:7 4;
opacity:.55}.aim2{stroke:var(--good);stroke-dasharray:2 4;opacity:.55}
.scroll{overflow-x:auto;margin-top:12px}table{border-collapse:collapse;font-size:13px;
font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid var(--faint)}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}
.wide td,.wide th{text-align:left;white-space:normal;vertical-align:top}
.best{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}
details{margin-top:10px}summary{cursor:pointer;color:var(--soft);font-size:13px}
"""

OURS_STYLES = {"registered": "ours", "private": "ours2", "huge": "ours3"}
PEER_STYLES = {"openmpi-cma": "a", "openmpi-nocma": "b", "openmpi4-cma": "c",
               "openmpi4-nocma": "d", "mpich": "e", "intelmpi": "f", "gloo": "g",
               "gloo-library": "h", "stretto-tcp": "ours3", "stretto-staged": "ours4",
               "copy": "bound", "bare": "bare"}


def escape(text):
    return html.escape(str(text))


def usual_regime(rows):
    """The regime of most sizes; points of another one are drawn hollow."""
    regimes = [row.regime for row in figures.main_rows(rows)]
    return max(set(regimes), key=regimes.count)


def cell_point(row, cell, usual):
    low, high = cell.spread
    way = f", {cell.way()}" if cell.way() else ""
    title = (f"{cell.system} ({cell.buffers}{way}), {figures.size_text(row.bytes)}: "
             f"{peers_table.time_text(cell.p50_us)} us "
             f"({peers_table.time_text(low)} to {peers_table.time_text(high)}), "
             f"p99 {peers_table.time_text(cell.p99_us)} us, {row.regime}")
    return chart.Point(row.bytes, max(cell.p50_us, 0.01), hollow=row.regime != usual,
                             title=title)


def time_lines(rows, run):
    usual = usual_regime(rows)
    main = figures.main_rows(rows)
    lines = []
    for kind in figures.KINDS:
        points = [cell_point(row, row.ours(kind), usual) for row in main if row.ours(kind)]
        lines.append(chart.Line(f"stretto, {kind}", OURS_STYLES[kind], points))
    for entry in run["systems"]:
        if entry["name"] == "stretto":
            continue
        best = [(row, row.best(system=entry["name"])) for row in main]
        points = [cell_point(row, cell, usual) for row, cell in best if cell]
        lines.append(chart.Line(entry["title"], PEER_STYLES.get(entry["name"], "g"), points))
    return lines


def ratio_point(row, ratio, usual):
    title = (f"{figures.size_text(row.bytes)}: {ratio.text()} times {ratio.against.system} "
             f"({ratio.spread_text()}), {row.regime}")
    return chart.Point(row.bytes, ratio.value, ratio.low, ratio.high, row.regime != usual,
                             title)


def ratio_lines(rows, family):
    usual = usual_regime(rows)
    lines = []
    for kind in figures.KINDS:
        ratios = [(row, row.ratio(kind, family)) for row in figures.main_rows(rows)]
        points = [ratio_point(row, ratio, usual) for row, ratio in ratios if ratio]
        lines.append(chart.Line(kind, OURS_STYLES[kind], points))
    return lines


def goal_levels(rows, family):
    sizes = [row.bytes for row in rows]
    levels = [chart.Level(min(sizes), max(sizes), 1, "one", "as fast")]
    for kind, mark in (("registered", ""), ("private", "2")):
        for goal in figures.goals(rows[0].operation, usual_regime(rows), kind, family):
            if not any(goal.first <= size <= goal.last for size in sizes):
                continue
            levels.append(chart.Level(goal.first, goal.last, goal.least, f"least{mark}"))
            levels.append(chart.Level(goal.first, goal.last, goal.aim, f"aim{mark}"))
    return levels


def figure(title, svg, caption, style=""):
    return (f'<figure class="{style}"><h3>{escape(title)}</h3><div class="plot">{svg}</div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>") if svg else ""


def plots(operation, rows, run):
    ticks = [(size, figures.size_text(size)) for size in sorted({row.bytes for row in rows})]
    if len(ticks) < 2:
        return ""
    parts = [figure("Time, microseconds", chart.chart(
        time_lines(rows, run), [], ticks, "us", f"Time of {operation} over size"),
        "Lower is better. Of each system the fastest of its ways to run.", "large")]
    for family, name in (("mpi", "the best MPI"), ("gloo", "Gloo")):
        svg = chart.chart(ratio_lines(rows, family), goal_levels(rows, family), ticks,
                                f"times faster than {name}", f"{operation} against {name}", "x")
        parts.append(figure(f"How many times faster than {name}", svg,
                            "Higher is better; bars: lowest and highest repeat. Dashed: wanted at "
                            "least; green dots: the aim (paler: for private buffers)."))
    return f'<div class="plots">{"".join(parts)}</div>'


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


def section(operation, rows, run):
    names = [entry["name"] for entry in run["systems"]]
    columns = peers_table.Columns(rows, names)
    times = html_table(columns.time_heads(), [columns.times(row) for row in rows])
    ratios = html_table(columns.ratio_heads(), [columns.ratio_texts(row) for row in rows])
    drawn = plots(operation, rows, run)
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


def page(run, rows, lines):
    machine = run["machine"]
    sections = "".join(
        section(operation, [row for row in rows if row.operation == operation], run)
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

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables of bench/peers.py for a terminal: one per operation."""

import figures

TITLES = {"registered": "reg", "private": "priv", "huge": "huge"}
FAMILY_TITLES = {"mpi": "MPI", "gloo": "Gloo"}
REGIME_TITLES = {"oversubscribed": "shared"}

LEGEND = """\
Times: medians of the repeats of p50; of each system the fastest of its ways to run; * the best MPI.
Ratios: the best MPI (Gloo) over ours, above 1 is faster, with the lowest and highest repeat.
MPI/bare: the best MPI over plain loops without a library, which copy private memory once or stage
it.
bound: the time of p copies at once over ours. Regime "shared": more ranks than cores."""


def time_text(us):
    """Formats microseconds with three digits."""
    if us >= 99.95:
        return f"{us:.0f}"
    if us >= 9.995:
        return f"{us:.1f}"
    return f"{us:.2f}"


def align(rows):
    """Pads columns to equal width; the first is left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                      for i, (text, width) in enumerate(zip(row, widths))).rstrip()
            for row in rows]


class Columns:
    """The columns for which at least one row of an operation has values."""

    def __init__(self, rows, names):
        self.kinds = [kind for kind in figures.KINDS if any(row.ours(kind) for row in rows)]
        self.others = [name for name in names
                       if name != "stretto" and any(row.best(system=name) for row in rows)]
        self.ratios = [(kind, family) for family in FAMILY_TITLES for kind in self.kinds
                       if any(row.ratio(kind, family) for row in rows)]
        self.bare = [kind for kind in self.kinds if any(row.bare_ratio(kind) for row in rows)]
        self.bound = any(figures.bound_share(row, kind) for row in rows for kind in self.kinds)

    def time_heads(self):
        return ["size", "regime"] + [f"ours {TITLES[kind]}" for kind in self.kinds] + self.others

    def times(self, row):
        best_mpi = row.best(family="mpi")
        texts = name_of(row)
        for kind in self.kinds:
            ours = row.ours(kind)
            texts.append(time_text(ours.p50_us) + " " if ours else "- ")
        for name in self.others:
            cell = row.best(system=name)
            star = "*" if cell and cell is best_mpi else " "
            texts.append(time_text(cell.p50_us) + star if cell else "- ")
        return texts

    def ratio_heads(self):
        heads = ["size", "regime"]
        heads += [f"{FAMILY_TITLES[family]}/{TITLES[kind]}" for kind, family in self.ratios]
        heads += [f"p99/p50 {TITLES[kind]}" for kind in self.kinds]
        heads += [f"MPI/bare {TITLES[kind]}" for kind in self.bare]
        return heads + ([f"bound/{TITLES[kind]}" for kind in self.kinds] if self.bound else [])

    def ratio_texts(self, row):
        texts = name_of(row)
        for kind, family in self.ratios:
            ratio = row.ratio(kind, family)
            texts.append(f"{ratio.text()} ({ratio.spread_text()})" if ratio else "-")
        for kind in self.kinds:
            ours = row.ours(kind)
            texts.append(f"{ours.jitter:.1f}" if ours else "-")
        for kind in self.bare:
            ratio = row.bare_ratio(kind)
            texts.append(ratio.text() if ratio else "-")
        for kind in self.kinds if self.bound else []:
            share = figures.bound_share(row, kind)
            texts.append(f"{100 * share:.0f} %" if share else "-")
        return texts


def name_of(row):
    regime = REGIME_TITLES.get(row.regime, row.regime)
    return [figures.size_text(row.bytes) if row.bytes else "-", regime]


def operation_tables(operation, rows, names):
    columns = Columns(rows, names)
    times = align([columns.time_heads()] + [columns.times(row) for row in rows])
    compared = [row for row in rows
                if any(row.ratio(kind, family) for kind, family in columns.ratios)]
    ratios = align([columns.ratio_heads()] + [columns.ratio_texts(row) for row in compared])
    head = f"{operation}, {rows[0].ranks} ranks, float32, us"
    return "\n".join([head] + times + [""] + (ratios if columns.ratios else []))


def heading(run):
    machine = run["machine"]
    return (f"{machine['cpu']}, {machine['cores']} cores usable, L3 {machine['l3']}, "
            f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, huge pages "
            f"{machine['huge_pages']}\ncommit {run['commit']}, {run['date']}\n{run['command']}")


def text(run, rows):
    """Returns all tables, the meaning of the columns, and the problems."""
    names = [entry["name"] for entry in run["systems"]]
    parts = ["\n" + heading(run)]
    for operation in dict.fromkeys(row.operation for row in rows):
        parts.append(operation_tables(operation, [row for row in rows
                                                 if row.operation == operation], names))
    parts.append(LEGEND)
    notes = []
    for entry in run["systems"]:
        notes.append(f"{entry['name']}: {entry['version'] or '?'}; {entry['settings']}")
        notes += [f"  {note}" for note in entry["notes"]]
    return "\n\n".join(parts + ["\n".join(notes)])

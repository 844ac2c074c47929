# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The parts of docs/measurements/hosts.md that ./dev bench hosts --page measures."""

import dataclasses
import re
import textwrap

import hosts_report
import peers

BEGIN = "<!-- {}: made by ./dev bench hosts --page -->"
END = "<!-- end of {} -->"

# A cable with delay, loss or limits of connections is a process, which carries some hundred Mbit/s.
FEW = "--bytes 8,64K,1M --no-algorithms"
PARTS = {
    "gigabit": ["--shapes 2x2,4x1,3+1,rr2x2 --bytes 8,4K,64K,1M",
                "--shapes 2x2,4x1,3+1,rr2x2 --bytes 16M --no-algorithms"],
    "100M": ["--rate 100M --bytes 8,4K,64K,1M",
             "--rate 100M --bytes 16M --repeats 3 --no-algorithms"],
    "10G": ["--rate 10G"],
    "operations": ["--operations all --shapes 2x2,3+1,rr2x2 --bytes 64K,1M --no-algorithms"],
    "canonical": ["--operations all_reduce,reduce_scatter,reduce --shapes 2x3 --bytes 1M "
                  "--no-algorithms"],
    "delay": [words for ms in (1, 5, 20) for words in
              (f"--delay {ms} --rate 100M --repeats 1 --bytes 8,64K,1M",
               f"--delay {ms} --rate 100M --repeats 5 --bytes 8,64K --no-algorithms "
               "--systems stretto,openmpi",
               f"--delay {ms} --rate 100M --repeats 1 --bytes 16M --no-algorithms "
               "--systems stretto,openmpi")],
    "loss": [f"--loss {permille} --delay 1 --rate 100M {words}" for permille in (1, 10)
             for words in (FEW,
                           "--repeats 31 --bytes 64K --no-algorithms --systems stretto,openmpi",
                           "--repeats 1 --bytes 16M --no-algorithms")],
    "connections": [f"--streams {streams} --connection-rate 25M --delay 1 --rate 100M --shapes 2x1 "
                    "--repeats 1 --bytes 64K,1M,4M --no-algorithms" for streams in (1, 4)],
    "cards": ["--cards 2 --shapes 2x2,2x1 --rate 100M --bytes 64K,1M,16M --repeats 1 "
              "--no-algorithms"],
    "training": ["--training --shapes 2x2,4x1"],
    "plots": ["--plots build/plots"],
    "joining": ["--joining 64", "--joining 256 --repeats 1"],
    "mesh": ["--mesh --repeats 3", "--mesh --repeats 3 --encryption tls"],
    "encryption": ["--encryption tls --rate 10G --no-algorithms"],
}


# Columns of a page's tables, if the shapes of a part differ in them.
LABELS = {"hosts": lambda facts: facts["shape"],
          "delay": lambda facts: f"{facts['delay_ms']:g} ms",
          "loss": lambda facts: f"{facts['loss_permille'] / 10:g} %",
          "connections": lambda facts: str(facts["streams"])}
RUNS = ["parts", "commit", "other libraries", "busy cores before"]
# Of a part, and of all parts.
NEAR = f"Predictions within {100 * hosts_report.NEAR_PREDICTION:.0f} %"
ALL_NEAR = f"Predictions that are within {100 * hosts_report.NEAR_PREDICTION:.0f} % of the time"


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one run says of one shape, as texts."""

    facts: dict
    titles: list
    rows: list
    near: dict  # "named algorithms" or "choices" -> (how many predictions are near, of how many)
    sentences: list = dataclasses.field(default_factory=list)


def shape_of(facts, lines):
    found = hosts_report.medians(lines)
    titles, rows = hosts_report.compared(found)
    named = any(key[3] for key in found)
    near = hosts_report.near_predictions(found, named)
    return Shape(facts, titles, rows,
                 {"named algorithms" if named else "choices": near} if near[1] else {},
                 hosts_report.cost_of_encryption(found))


def joined(texts):
    """What several runs say, equal texts once: "5 ms (1.00), 6 ms (1.20)", "ring (1.00, 1.20)"."""
    texts = list(dict.fromkeys(text for text in texts if text != "-"))
    heads = {text.partition(" (")[0] for text in texts}
    if len(texts) > 1 and len(heads) == 1 and all(text.endswith(")") for text in texts):
        notes = ", ".join(text.partition(" (")[2].removesuffix(")") for text in texts)
        return f"{heads.pop()} ({notes})"
    return ", ".join(texts) or "-"


def range_text(microseconds):
    least, most = (hosts_report.time_text(time).split(" ")
                   for time in (min(microseconds), max(microseconds)))
    if least == most:
        return " ".join(most)
    return f"{' '.join(least[:1] if least[1] == most[1] else least)} to {' '.join(most)}"


def plain_text(group):
    """What plain sockets make of the links of a group of shapes."""
    return (range_text([shape.facts["round_trip_us"] for shape in group]) + ", "
            + range_text([1e3 * shape.facts["plain_16mib_ms"] for shape in group]))


def in_groups(shapes, columns):
    groups = {}
    for shape in shapes:
        groups.setdefault(tuple(LABELS[title](shape.facts) for title in columns), []).append(shape)
    return groups


def label_texts(columns, labels):
    return [label if title == "hosts" else f"{title} {label}"
            for title, label in zip(columns, labels)]


def rows_of(group, titles):
    """One for each operation and size: what each run of the group says, in their order."""
    found = {}
    for shape in group:
        for row in shape.rows:
            cells = dict(zip(shape.titles, row)) | {"repeats": str(shape.facts["repeats"])}
            found.setdefault((cells["operation"], cells["bytes"]), []).append(cells)
    return [[joined(row.get(title, "-") for row in of_runs) for title in titles]
            for of_runs in found.values()]


def titles_of(shapes):
    known = ["operation", "bytes", "repeats", "reference", *hosts_report.TITLES.values(),
             "stretto chooses"]
    used = {title for shape in shapes for title in shape.titles}
    if len({row[0] for shape in shapes for row in shape.rows}) == 1:
        used.remove("operation")
    if len({shape.facts["repeats"] for shape in shapes}) > 1:
        used.add("repeats")
    return [title for title in known if title in used]


def facts_text(shapes, columns, titles):
    facts, words = shapes[0].facts, []
    if "operation" not in titles:
        words.append(shapes[0].rows[0][0])
    if "hosts" not in columns:
        words.append(facts["shape"])
    words += hosts_report.link_words(facts, columns)
    if "repeats" not in titles:
        words.append("1 repeat" if facts["repeats"] == 1 else f"{facts['repeats']} repeats")
    plain = "; ".join(": ".join([*label_texts(columns, labels), plain_text(group)])
                      for labels, group in in_groups(shapes, columns).items())
    return f"{', '.join(words)}. Plain sockets, round trip and 16 MiB both ways: {plain}."


def left_out(shapes, columns):
    """What was not measured, and in brackets for which rows."""
    reasons = {}
    for labels, group in in_groups(shapes, columns).items():
        for shape in group:
            for text in hosts_report.left_out_texts(shape.facts):
                where = ", ".join(label_texts(columns, labels))
                reasons.setdefault(text, {})[where] = None
    return [f"{text} ({'; '.join(where)})." if all(where) else f"{text}."
            for text, where in reasons.items()]


def near_text(near):
    """Of all these objects, added up."""
    total = {kind: [sum(counts) for counts in zip(*(one[kind] for one in near if kind in one))]
             for one in near for kind in one}
    return ", ".join(f"{counts[0]} of {counts[1]} {kind}" for kind, counts in total.items())


def table_text(shapes):
    """One table of all shapes of a part's runs."""
    columns = [title for title, of in LABELS.items() if len({of(one.facts) for one in shapes}) > 1]
    titles = titles_of(shapes)
    rows = [[*labels, *row] for labels, group in in_groups(shapes, columns).items()
            for row in rows_of(group, titles)]
    parts = [facts_text(shapes, columns, titles),
             peers.markdown(columns + titles, rows)]
    after = [sentence for shape in shapes for sentence in shape.sentences]
    if near := near_text([shape.near for shape in shapes]):
        after.append(f"{NEAR}: {near}.")
    after += left_out(shapes, columns)
    return "\n\n".join(parts + (["\n".join(after)] if after else []))


def part_text(part, runs):
    """A table of all runs, or what each of them says."""
    commands = [f"`./dev bench hosts {words}`" for words in PARTS[part]]
    if shapes := [shape_of(*one) for run in runs for one in run.shapes]:
        made = commands[0] if len(runs) == 1 else f"Part `{part}`, {len(runs)} runs"
        return wrapped(f"{made}: {table_text(shapes)}")
    return wrapped("\n\n".join(f"{command}: {run.text}" for command, run in zip(commands, runs)))


def wrapped(text):
    """Lines of at most 100 columns, but for tables."""
    return "\n".join(line if line.startswith("|") else
                     textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
                     for line in text.splitlines())


def put(path, part, text):
    """Replaces what a page says of a part."""
    peers.put_into(path, BEGIN.format(part), END.format(part), text)


def versions_texts(versions):
    """(stretto's commit, what the others are)."""
    others = [text.partition(",")[0] for name, text in versions.items()
              if not name.startswith("stretto")]
    return versions["stretto"].removeprefix("stretto "), ", ".join(others) or "-"


def put_run(path, part, versions, load):
    """In the table of a page's runs, whose rows are for parts that were measured alike."""
    rest = path.read_text().partition(BEGIN.format("runs"))[2]
    said = re.findall(r"^\| (.*) \|$", rest.partition(END.format("runs"))[0], re.MULTILINE)[2:]
    parts = {name: tuple(values) for names, *values in (row.split(" | ") for row in said)
             for name in names.split(", ")}
    parts[part] = (*versions_texts(versions), f"{load:.1f}")
    rows = {}
    for name in PARTS:
        if name in parts:
            rows.setdefault(parts[name], []).append(name)
    put(path, "runs", peers.markdown(
        RUNS, [[", ".join(names), *values] for values, names in rows.items()]))


def predictions_text(page):
    """Of all parts of a page together."""
    said = re.findall(rf"^{NEAR}: (.*)\.$", page, re.MULTILINE)
    near = near_text([{kind: (int(near), int(count)) for near, count, kind in
                       re.findall(r"(\d+) of (\d+) ([a-z ]+)", text)} for text in said])
    return f"{ALL_NEAR}: {near}." if near else ""


def put_predictions(path):
    """After the parts."""
    put(path, "predictions", predictions_text(path.read_text()))

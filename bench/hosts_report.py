# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables of bench/hosts.py, on a terminal and in a page."""

import statistics

import figures
import peers

TITLES = {"stretto": "stretto", "stretto_tls": "stretto, TLS", "gloo": "Gloo",
          "openmpi": "Open MPI 4"}
NEAR_PREDICTION = 0.15


def time_text(microseconds):
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:.3g} {name}"
    return f"{microseconds:.3g} us"


def medians(lines):
    """Returns {(operation, bytes, system, algorithm): line}, where p50_us is the median of all
    repeats, `chosen` the most frequent choice, and `predicted`, if there are predictions, the
    median of predicted over measured time."""
    groups = {}
    for line in lines:
        if "p50_us" in line:
            key = (line["operation"], line["bytes"], line["system"], line["algorithm"])
            groups.setdefault(key, []).append(line)
    return {key: median(group) for key, group in groups.items()}


def median(group):
    line = group[0] | {"p50_us": statistics.median(line["p50_us"] for line in group)}
    if chosen := [line["chosen"] for line in group if line.get("chosen")]:
        line["chosen"] = statistics.mode(chosen)
    if ratios := [line["predicted_us"] / line["p50_us"] for line in group
                  if "predicted_us" in line]:
        line["predicted"] = statistics.median(ratios)
    return line


def times_of_floor(line):
    if line is None:
        return "-"
    multiples = [line["p50_us"] / line[name] for name in ("floor_us", "canonical_us")
                 if name in line]
    return f"{time_text(line['p50_us'])} ({'; '.join(f'{one:.2f}' for one in multiples)})"


def chosen_text(line):
    """Returns the choice and, in brackets, its predicted over measured time."""
    return line["chosen"] + (f" ({line['predicted']:.2f})" if "predicted" in line else "")


def floor_text(lines):
    """Returns the floor and, in brackets, the one for the canonical order if it differs."""
    canonical = next((f" ({time_text(line['canonical_us'])})" for line in lines
                      if "canonical_us" in line), "")
    return time_text(lines[0]["floor_us"]) + canonical


def compared(found):
    """Returns (titles, rows): for every operation and size the reference time, and each system's
    time with its multiple of the reference."""
    systems = [name for name in TITLES if any(key[2] == name for key in found)]
    rows = []
    for operation, size in dict.fromkeys(key[:2] for key in found):
        lines = [found.get((operation, size, name, "")) for name in systems]
        known = [line for line in lines if line]
        if not known:
            continue
        chosen = next((chosen_text(line) for line in known if line.get("chosen")), "-")
        rows.append([operation, figures.size_text(size) if size else "",
                     floor_text(known), *map(times_of_floor, lines), chosen])
    return ["operation", "bytes", "reference", *(TITLES[name] for name in systems),
            "stretto chooses"], rows


def by_algorithm(found):
    """Returns a table of each all_reduce algorithm's time, with predicted over measured time."""
    named = {key: line for key, line in found.items() if key[3]}
    algorithms = list(dict.fromkeys(key[3] for key in named))
    rows = []
    for size in dict.fromkeys(key[1] for key in named):
        cells = []
        for algorithm in algorithms:
            line = named.get(("all_reduce", size, "stretto", algorithm))
            text = "-" if line is None else time_text(line["p50_us"])
            if line and "predicted" in line:
                text += f" ({line['predicted']:.2f})"
            cells.append(text)
        rows.append([figures.size_text(size), *cells])
    return peers.markdown(["bytes", *algorithms], rows) if rows else ""


def cost_of_encryption(found):
    """Returns at most one sentence: how many times as long operations take with TLS."""
    ratios = [line["p50_us"] / found[*key[:2], "stretto", ""]["p50_us"]
              for key, line in found.items()
              if key[2] == "stretto_tls" and (*key[:2], "stretto", "") in found]
    return [f"With TLS, stretto takes {min(ratios):.2f} to {max(ratios):.2f} times as long, median "
            f"{statistics.median(ratios):.2f}."] if ratios else []


def near_predictions(found, named=True):
    """Returns (the number of predictions near the measurement, the number of predictions): of
    algorithms that were requested by name, or of the chosen ones."""
    ratios = [line["predicted"] for line in found.values()
              if "predicted" in line and bool(line["algorithm"]) == named]
    return sum(abs(ratio - 1) <= NEAR_PREDICTION for ratio in ratios), len(ratios)


def link_text(facts):
    words = [f"{facts['rate'] / 1e6:g} Mbit/s"]
    if facts["cards"] > 1:
        words[0] = f"{facts['cards']} cards of {words[0]} per host"
    if facts["delay_ms"]:
        words.append(f"{facts['delay_ms']:g} ms each way")
    if facts["loss_permille"]:
        words.append(f"{facts['loss_permille'] / 10:g} % of packets lost")
    if facts["connection_rate"]:
        words.append(f"{facts['connection_rate'] / 1e6:g} Mbit/s per connection")
    return ", ".join([*words, f"plain sockets: round trip "
                      f"{time_text(facts['round_trip_us'])}, 16 MiB both ways at once in "
                      f"{facts['plain_16mib_ms']:.0f} ms"])


def left_out_texts(facts):
    """Says which systems were not measured, or not completely, and why."""
    return [f"Without {TITLES[name]}: {reason}" for name, reason in facts["missing"].items()] + [
        f"{TITLES.get(name, name)}: {text}" for name, texts in facts["notes"].items()
        for text in texts]


def text(facts, lines):
    """Returns the report of one shape."""
    found = medians(lines)
    parts = [f"{facts['shape']}: {link_text(facts)}.", peers.markdown(*compared(found)),
             *cost_of_encryption(found)]
    if named := by_algorithm(found):
        near, count = near_predictions(found)
        parts += [f"all_reduce by algorithm, and in brackets predicted over measured: within "
                  f"{NEAR_PREDICTION:.0%} in {near} of {count}.", named]
    elif near_predictions(found, named=False)[1]:
        near, count = near_predictions(found, named=False)
        parts.append(f"Of what stretto chooses, with predicted over measured in brackets: within "
                     f"{NEAR_PREDICTION:.0%} in {near} of {count}.")
    parts.append("\n".join(f"{sentence}." for sentence in left_out_texts(facts)))
    return "\n\n".join(filter(None, parts)) + "\n"

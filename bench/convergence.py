#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What compressing gradients does to learning: the tables of docs/measurements/convergence.md.

Trains the digits of data/ and a small GPT, which reads ARCHITECTURE.md, with each hook of
examples/gradient_hooks.h, from the same parameters and the same batches, and prints the loss
against steps and against the bytes that a rank has sent. The GPT needs a build with libtorch.
What --json FILE holds is not run again: a run that was stopped goes on where it was.

examples:
  python3 bench/convergence.py > tables.md
  python3 bench/convergence.py --models digits --ranks 2 --digits-steps 1600
  python3 bench/convergence.py --json build/convergence.jsonl --document
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys

import peers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "measurements" / "convergence.md"
BEGIN, END = "<!-- begin of bench/convergence.py -->", "<!-- end of bench/convergence.py -->"
# `stretto run` names the rank before each line.
LINE = re.compile(r"^(?:\[\d+\] )?(.*): step (\d+): loss (-?[0-9.naif]+), sent (\d+) bytes$",
                  re.MULTILINE)
DENSE = "dense f32"


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="bench/convergence.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="digits,gpt", help="digits, gpt")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--gpt-ranks", metavar="LIST", help="of the GPT, which takes longer [as "
                        "--ranks]")
    parser.add_argument("--gpt-hooks", metavar="LIST",
                        help="of the GPT, by semicolons, 'dense f32' among them [all]")
    parser.add_argument("--digits-steps", type=int, default=1600)
    parser.add_argument("--gpt-steps", type=int, default=600)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="an object a line for each run; those that are there count")
    parser.add_argument("--document", action="store_true",
                        help="put the tables into their page instead of printing them")
    peers.add_build(parser)
    arguments = parser.parse_args(words)
    for model in arguments.models.split(","):
        if model not in ("digits", "gpt"):
            parser.error(f"--models: {model} is neither digits nor gpt")
    return arguments


def output_of(command):
    return subprocess.run([str(word) for word in command], cwd=ROOT, check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def curve_of(text, hook):
    """Returns a list of (step, loss, bytes)."""
    return [(int(step), float(loss), int(sent)) for name, step, loss, sent in LINE.findall(text)
            if name == hook]


def command_of(arguments, model, ranks, steps, hook):
    programs = arguments.build / "bin"
    if model == "digits":
        return [programs / "12_compressed_digits", "data/digits.csv", ranks, steps, hook]
    return [programs / "stretto", "run", "-n", ranks, "--", programs / "07_small_gpt",
            "ARCHITECTURE.md", steps, hook]


class Runs:
    """Curves by model, ranks, steps and hook; kept in a file if one is named."""

    def __init__(self, path):
        self.path = path
        self.curves = {}
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        for line in map(json.loads, lines):
            key = (line["model"], line["ranks"], line["steps"], line["hook"])
            self.curves[key] = [tuple(point) for point in line["curve"]]

    def curve(self, arguments, model, ranks, steps, hook):
        key = (model, ranks, steps, hook)
        if key not in self.curves:
            print(f"{model}, {ranks} ranks, {steps} steps: {hook}", file=sys.stderr, flush=True)
            curve = curve_of(output_of(command_of(arguments, *key)), hook)
            if not curve:
                raise SystemExit(f"{model} has printed no losses with '{hook}'")
            self.curves[key] = curve
            if self.path is not None:
                line = dict(zip(("model", "ranks", "steps", "hook"), key), curve=curve)
                with self.path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        return self.curves[key]


def megabytes(sent):
    return f"{sent / 1e6:.3g}"


def mean_of_last(curve):
    """Returns the mean loss of the last tenth of the reports (at least one), because a single batch
    says little."""
    last = curve[-max(1, len(curve) // 10):]
    return sum(loss for _, loss, _ in last) / len(last)


def table(title, found):
    """Returns a row for each hook: its losses, the bytes that a rank sent, and the bytes until its
    loss fell to that of dense gradients at certain steps."""
    dense = found[DENSE]
    columns = [len(dense) * quarter // 4 - 1 for quarter in (1, 2, 3, 4)]
    goals = [dense[len(dense) * eighth // 8 - 1][1] for eighth in (1, 2, 4, 8)]
    header = [title, *(f"loss at {dense[column][0]}" for column in columns), "end, of dense",
              "MB sent", *(f"MB to {goal:.4f}" for goal in goals)]
    rows = []
    for hook, curve in found.items():
        end = 100 * (mean_of_last(curve) / mean_of_last(dense) - 1)
        rows.append([hook, *(f"{curve[column][1]:.4f}" for column in columns), f"{end:+.1f} %",
                     megabytes(curve[-1][2]),
                     *(next((megabytes(sent) for _, loss, sent in curve if loss <= goal), "-")
                       for goal in goals)])
    return peers.markdown(header, rows)


def tables(arguments, hooks):
    """Returns the tables of all models and numbers of ranks."""
    runs = Runs(arguments.json)
    of_gpt = [hook for hook in hooks
              if not arguments.gpt_hooks or hook in arguments.gpt_hooks.split(";")]
    for model in arguments.models.split(","):
        is_gpt = model == "gpt"
        steps = arguments.gpt_steps if is_gpt else arguments.digits_steps
        numbers = (is_gpt and arguments.gpt_ranks) or arguments.ranks
        for ranks in map(int, numbers.split(",")):
            found = {hook: runs.curve(arguments, model, ranks, steps, hook)
                     for hook in (of_gpt if is_gpt else hooks)}
            yield table(f"{model}, {ranks} ranks", found)


def main(words):
    arguments = parse_arguments(words)
    hooks = output_of([arguments.build / "bin" / "12_compressed_digits", "hooks"]).splitlines()
    made = []
    for text in tables(arguments, hooks):
        made.append(text)
        if not arguments.document:
            print(text + "\n", flush=True)
    if arguments.document:
        words = [word for word in words if word != "--document"]
        command = f"python3 bench/convergence.py {shlex.join(words)} --document"
        peers.put_into(DOCUMENT, BEGIN, END, "\n\n".join([f"Made by `{command}`.", *made]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What compressing gradients does to learning: the tables of docs/convergence.md.

Trains the digits of data/ and a small GPT, which reads ARCHITECTURE.md, with each hook of
examples/gradient_hooks.h, from the same parameters and the same batches, and prints the loss
against steps and against the bytes that a rank has sent. The GPT needs a build with libtorch.

examples:
  python3 bench/convergence.py > tables.md
  python3 bench/convergence.py --models digits --ranks 2 --digits-steps 1600
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINE = re.compile(r"^(.*): step (\d+): loss ([0-9.naif]+), sent (\d+) bytes$", re.MULTILINE)
# The GPT's optimizer has its own idea of momentum.
NOT_OF_GPT = ("momentum", "clipped")


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="bench/convergence.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="digits,gpt", help="digits, gpt")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--digits-steps", type=int, default=1600)
    parser.add_argument("--gpt-steps", type=int, default=600)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release",
                        metavar="FOLDER", help="build folder of stretto")
    return parser.parse_args(words)


def run(command):
    return subprocess.run([str(word) for word in command], cwd=ROOT, check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def curves(text):
    """Of each hook a list of (step, loss, bytes)."""
    found = {}
    for hook, step, loss, sent in LINE.findall(text):
        found.setdefault(hook, []).append((int(step), float(loss), int(sent)))
    return found


def digits(arguments, ranks):
    return curves(run([arguments.build / "bin" / "12_compressed_digits", "data/digits.csv", ranks,
                       arguments.digits_steps]))


def gpt(arguments, ranks, hooks):
    found = {}
    for hook in hooks:
        if any(word in hook for word in NOT_OF_GPT):
            continue
        found |= curves(run([arguments.build / "bin" / "stretto", "run", "-n", ranks, "--",
                             arguments.build / "bin" / "07_small_gpt", "ARCHITECTURE.md",
                             arguments.gpt_steps, hook]))
    return found


def shown(sent):
    return f"{sent / 1e6:.3g} MB"


def mean_of_last(curve):
    """The last tenth of the reports, at least one: one batch alone says little."""
    last = curve[-max(1, len(curve) // 10):]
    return sum(loss for _, loss, _ in last) / len(last)


def by_steps(title, found):
    steps = [step for step, _, _ in next(iter(found.values()))]
    columns = [len(steps) * quarter // 4 - 1 for quarter in (1, 2, 3, 4)]
    dense = mean_of_last(found["dense f32"])
    rows = [f"| {title}, loss after step | "
            + " | ".join(str(steps[column]) for column in columns) + " | end, of dense | sent |",
            "|" + "---|" * (len(columns) + 3)]
    for hook, curve in found.items():
        losses = " | ".join(f"{curve[column][1]:.4f}" for column in columns)
        rows.append(f"| {hook} | {losses} | {100 * (mean_of_last(curve) / dense - 1):+.1f} % "
                    f"| {shown(curve[-1][2])} |")
    return "\n".join(rows)


def by_bytes(title, found):
    """How much each has sent when the loss has come down to that of dense at some steps."""
    dense = found["dense f32"]
    goals = [dense[len(dense) * eighth // 8 - 1][1] for eighth in (1, 2, 4, 8)]
    rows = [f"| {title}, sent until the loss is | " + " | ".join(f"{goal:.4f}" for goal in goals)
            + " |", "|" + "---|" * (len(goals) + 1)]
    for hook, curve in found.items():
        sent = [next((shown(sent) for _, loss, sent in curve if loss <= goal), "-")
                for goal in goals]
        rows.append(f"| {hook} | " + " | ".join(sent) + " |")
    return "\n".join(rows)


def main(words):
    arguments = parse_arguments(words)
    for ranks in arguments.ranks.split(","):
        for model in arguments.models.split(","):
            if model == "digits":
                found = digits(arguments, ranks)
            else:
                hooks = curves(run([arguments.build / "bin" / "12_compressed_digits",
                                    "data/digits.csv", 1, 16]))
                found = gpt(arguments, ranks, hooks)
            title = f"{model}, {ranks} ranks"
            print(by_steps(title, found) + "\n\n" + by_bytes(title, found) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

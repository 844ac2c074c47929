#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""How fast an all_reduce on GPUs is, for stretto and for NCCL alone, in turns.

Every sum is checked first. Then all systems take turns, in the same processes: NCCL called directly
on a stream, and stretto's backends nccl and cuda; between hosts, backend nccl also in two levels.
Times are those of the slowest rank: by size, by operations in flight, and by number of ranks.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

import figures
import peers

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
import gpu_check  # noqa: E402  pylint: disable=wrong-import-position

IN_FLIGHT = [1, 2, 4, 8, 16]
IN_FLIGHT_BYTES = 4 * figures.MIB  # Of each operation.
RANKS_BYTES = 64 * figures.MIB
ALONE = "NCCL alone"  # The name in bench/drivers/gpu_systems.cc.
EXAMPLES = """examples:
  ./dev bench gpus                                  a rank for each GPU
  ./dev bench gpus --ranks 2,4,8                    also by number of ranks
  ./dev bench gpus --bytes 8,64K,16M --json gpus.jsonl
  ./dev bench gpus --ranks 8 --hosts node0,node1    8 ranks on each host; two levels against flat
  python3 bench/gpus.py --bin build/gpu/bin         programs that are built already"""


PARTS = [figures.Axis("bytes", "By size, one all_reduce at a time", figures.size_text),
         figures.Axis("in_flight", "By operations in flight, all_reduces of "
                      f"{figures.size_text(IN_FLIGHT_BYTES)} each, begun together"),
         figures.Axis("ranks", "By number of ranks, one all_reduce of "
                      f"{figures.size_text(RANKS_BYTES)} at a time")]


class DriverFailed(Exception):
    """The driver failed; the text is the job's output."""


def numbers_of(text):
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers; write 2 or 2,4")
    return numbers


def parse_arguments(words, gpus):
    parser = argparse.ArgumentParser(
        prog="./dev bench gpus", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers_of, default=[max(1, gpus)], metavar="N[,N]",
                        help="processes on each host [as many as there are GPUs]")
    parser.add_argument("--hosts", metavar="HOSTS",
                        help="as of stretto run, with the programs in the same folder [this one]")
    parser.add_argument("--bytes", type=peers.sizes_of, metavar="B[,B]",
                        default="8,4K,64K,1M,16M,64M,256M", help="sizes, as in 8,64K,16M")
    parser.add_argument("--in-flight", type=numbers_of, default=IN_FLIGHT, metavar="N[,N]",
                        help="numbers of operations that are in flight together [1,2,4,8,16]")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each, 1 or more [7]")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="an object a line")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin",
                        metavar="FOLDER", help="programs that are built [build/release/bin]")
    arguments = parser.parse_args(words)
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least one")
    return arguments


def points_of(arguments, ranks):
    """Returns the (bytes, in flight) to measure with `ranks` ranks: the full list only for the
    largest number of ranks."""
    points = [(RANKS_BYTES, 1)] if len(arguments.ranks) > 1 else []
    if ranks == max(arguments.ranks):
        # At least one element.
        points += [(max(4, size // 4 * 4), 1) for size in arguments.bytes]
        points += [(IN_FLIGHT_BYTES, count) for count in arguments.in_flight]
    return list(dict.fromkeys(points))


def drive(arguments, ranks, points):
    """Returns the driver's output."""
    programs = arguments.bin.resolve()
    hosts = ["--hosts", arguments.hosts] if arguments.hosts else []
    command = [programs / "stretto", "run", "-n", ranks, "--no-prefix", *hosts, "--",
               programs / "gpu_driver", arguments.rounds,
               *(f"{size}x{count}" for size, count in points)]
    environment = {name: value for name, value in os.environ.items() if name != "STRETTO_BACKEND"}
    try:
        job = subprocess.run([str(word) for word in command], env=environment, text=True,
                             capture_output=True, check=False)
    except OSError as error:
        raise DriverFailed(str(error)) from error
    if job.returncode != 0:
        raise DriverFailed(job.stderr.strip() or job.stdout.strip())
    return job.stdout


def measure(arguments):
    """Returns (lines, sentences on what was left out, sentences on failures)."""
    lines, sentences, failures = [], [], []
    for ranks in arguments.ranks:
        number_of = "1 rank" if ranks == 1 else f"{ranks} ranks"
        try:
            output = drive(arguments, ranks, points_of(arguments, ranks))
        except DriverFailed as failure:
            failures.append(f"{number_of}: {failure}")
            continue
        lines += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        sentences += [f"{number_of}, {line}." for line in output.splitlines()
                      if line.startswith("left out ")]
        print(f"  {number_of}: done", file=sys.stderr, flush=True)
    if not lines and not failures:
        failures.append("there was nothing to measure")
    return lines, sentences, failures


def lines_of(part, lines):
    """Returns the lines of a part, sorted along its axis."""
    most = max((line["ranks"] for line in lines), default=0)
    fits = {"bytes": lambda line: line["ranks"] == most and line["in_flight"] == 1,
            "in_flight": lambda line: (line["ranks"] == most and line["bytes"] == IN_FLIGHT_BYTES),
            "ranks": lambda line: line["bytes"] == RANKS_BYTES and line["in_flight"] == 1}
    return sorted(filter(fits[part.key], lines), key=lambda line: line[part.key])


def range_text(values):
    least, middle, most = map(figures.number,
                              (min(values), statistics.median(values), max(values)))
    return f"{middle} ({least} to {most})"


def ratios(line, alone):
    """Returns the ratios of each round."""
    return [mine / other for mine, other in zip(line["us"], alone["us"])]


def table(part, lines):
    """Returns Markdown: times, host time of the calls, and times as multiples of NCCL's."""
    chosen = lines_of(part, lines)
    cells = {(line[part.key], line["system"]): line for line in chosen}
    systems = list(dict.fromkeys(line["system"] for line in chosen))
    others = [system for system in systems if system != ALONE] if ALONE in systems else []
    heads = [part.key.replace("_", " "), *systems, *(f"call, {system}" for system in systems),
             *(f"{system} / {ALONE}" for system in others)]
    rows = []
    for x in dict.fromkeys(line[part.key] for line in chosen):
        of = {system: cells.get((x, system)) for system in systems}
        row = [part.name_of(x)]
        row += [range_text(of[system]["us"]) if of[system] else "-" for system in systems]
        row += [figures.number(statistics.median(of[system]["call_us"])) if of[system] else "-"
                for system in systems]
        row += [range_text(ratios(of[system], of[ALONE])) if of[system] and of[ALONE] else "-"
                for system in others]
        rows.append(row)
    return peers.markdown(heads, rows)


def text(lines, left_out):
    parts = [f"{part.caption}; microseconds:\n\n{table(part, lines)}"
             for part in PARTS if lines_of(part, lines)]
    return "\n\n".join(parts + left_out)


def main(words):
    gpus, reason = gpu_check.find_gpus(os.environ.get("STRETTO_CUDA_DRIVER") or "libcuda.so.1")
    arguments = parse_arguments(words, len(gpus))
    if not gpus and not arguments.hosts:
        print(f"no GPU: {reason}; nothing was measured.")
        return gpu_check.NO_GPU
    run = {"gpus": gpus, "commit": peers.commit_of(), "rounds": arguments.rounds,
           "command": shlex.join(["./dev", "bench", "gpus", *peers.without_files(words)]),
           "date": peers.today()}
    lines, left_out, failures = measure(arguments)
    print(text(lines, left_out))
    for failure in failures:
        print(f"./dev bench gpus: {failure}", file=sys.stderr)
    peers.write_lines(arguments.json, [line | run for line in lines])
    return int(bool(failures))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

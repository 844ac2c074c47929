#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs libFuzzer on everything that reads bytes from peers, stores, other programs and files.

Every x_fuzz.cc is a target, which begins with tests/corpora/x_fuzz and with what earlier runs have
kept in build/fuzz/corpora. Several run at a time. Exits with 1 if one has found something, and says
with which input; such an input belongs into the corpus together with the mend.
"""

import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys

import header_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/fuzz"


def run(program: pathlib.Path, seconds: int) -> tuple[str, bool, str]:
    """Returns the target's name, whether it has found nothing, and its output."""
    folders = [BUILD / "corpora" / program.name, ROOT / "tests/corpora" / program.name]
    folders[0].mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [program, f"-max_total_time={seconds}", "-timeout=20", "-print_final_stats=1",
         f"-artifact_prefix={BUILD}/{program.name}-", *filter(pathlib.Path.is_dir, folders)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return program.name, done.returncode == 0, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="for all together (default: 5)")
    parser.add_argument("--only", metavar="NAME", default="",
                        help="targets whose name has this in it, such as store")
    arguments = parser.parse_args()
    programs = sorted(path for path in (BUILD / "bin").glob("*_fuzz")
                      if arguments.only in path.name)
    if not programs:
        parser.error(f"there is no target {arguments.only} in {BUILD}/bin")
    workers = header_check.workers()
    rounds = -(-len(programs) // workers)
    seconds = max(1, round(60 * arguments.minutes / rounds))
    failed = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for name, is_well, text in pool.map(lambda path: run(path, seconds), programs):
            inputs = re.search(r"number_of_executed_units: *(\d+)", text)
            print(f"{name}: {inputs[1] if inputs else '?'} inputs in {seconds} s", flush=True)
            if not is_well:
                failed.append(name)
                print("\n".join(text.splitlines()[-60:]), flush=True)
    print(f"{len(programs)} targets; " + (f"FAILED: {', '.join(failed)}" if failed else "all well"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

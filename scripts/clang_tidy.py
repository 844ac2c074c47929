#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs clang-tidy (.clang-tidy) on some sources, for a bounded time; ./dev check calls it.

First those that the working tree or the last commit has changed, then others, in an order that
every tree draws anew. What was found well is not looked at again before it, a header of ours that
it includes, or the list of checks has changed. Findings are errors.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import header_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / "build/tidy"
CLANG, CLANG_TIDY = "clang++-14", "clang-tidy-14"
# What g++ knows and clang does not, and what clang would warn of: the build is judge of warnings.
_GCC_ONLY = re.compile(r"-f(?:pch-preprocess|no-gnu-unique)|-W.*")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


def _sources(build: pathlib.Path) -> dict[str, list[str]]:
    """Every source of ours that the build compiles: its precompiled header, then its flags."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        paths = [path]
        if "/Unity/" in entry["file"]:  # Of several sources.
            paths = [pathlib.Path(each) for each in
                     re.findall(r'#include "(.*)"', path.read_text() if path.exists() else "")]
        paths = [each for each in paths if ROOT in each.parents and build not in each.parents]
        words = iter(shlex.split(entry["command"])[1:])
        header, flags = "", []
        for word in words:
            if word in ("-o", "-c"):
                next(words)
            elif word == "-include":
                header = next(words)
            elif not _GCC_ONLY.fullmatch(word):
                flags.append(word)
        for each in paths:
            found[str(each.relative_to(ROOT))] = [header, *flags]
    return found


def _precompile(flags: list[str]) -> list[str]:
    """clang's own precompiled header in the place of that of g++."""
    header, flags = flags[0], flags[1:]
    if not header:
        return flags
    text = pathlib.Path(header).read_text()
    name = hashlib.sha256("\0".join([text, *flags]).encode()).hexdigest()[:16]
    compiled = CACHE / f"clang-{name}.pch"
    if not compiled.exists():
        copy = compiled.with_suffix(".h")
        copy.write_text(text)
        subprocess.run([CLANG, *flags, "-w", "-x", "c++-header", copy, "-o", compiled], check=True)
    return [*flags, "-include-pch", str(compiled)]


def _stamp(path: str, flags: list[str]) -> pathlib.Path:
    words = [CLANG_TIDY, (ROOT / ".clang-tidy").read_text(), *flags]
    return CACHE / f"clang-{header_check.digest(ROOT, header_check.closure(ROOT, path), words)}"


def _in_order(paths: list[str]) -> list[str]:
    changed = set(_git("diff", "--name-only", "HEAD").split())
    changed |= set(_git("show", "--format=", "--name-only", "HEAD").split())
    tree = _git("rev-parse", "HEAD^{tree}")
    return sorted(paths, key=lambda path: (
        path not in changed, hashlib.sha256((tree + path).encode()).hexdigest()))


def _problem(path: str, flags: list[str]) -> str:
    """What clang-tidy has found; empty if nothing."""
    command = [CLANG_TIDY, "--quiet", path, "--", *flags, "-w"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "" if run.returncode == 0 else run.stdout.strip() or run.stderr.strip()


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="look at these only, well or not")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/check",
                        help="folder with compile_commands.json (default: build/check)")
    parser.add_argument("--count", type=int, default=40, help="at most so many (default: 40)")
    parser.add_argument("--seconds", type=float, default=80,
                        help="begin none after so many (default: 80)")
    parser.add_argument("--all", action="store_true", help="all of them, however long it takes")
    return parser.parse_args()


def main() -> int:
    arguments = _read_arguments()
    began = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = _sources(arguments.build.resolve())
    stamps = {path: _stamp(path, flags) for path, flags in sources.items()}
    paths = [path for path in _in_order(list(sources)) if not stamps[path].exists()]
    if not arguments.all:
        paths = paths[: arguments.count]
    paths = arguments.paths or paths
    flags = {path: _precompile(sources[path]) for path in paths}
    looked_at, failed = 0, 0

    def look(path: str) -> str | None:
        late = time.monotonic() - began > arguments.seconds
        return None if late and not arguments.all else _problem(path, flags[path])

    workers = int(os.environ.get("STRETTO_JOBS", os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for path, problem in zip(paths, pool.map(look, paths)):
            looked_at += problem is not None
            if problem:
                failed += 1
                print(problem, flush=True)
            elif problem is not None:
                stamps[path].touch()
    rest = sum(not stamp.exists() for stamp in stamps.values())
    print(f"clang-tidy: {looked_at} sources, {failed} with findings; {rest} of {len(sources)} not "
          "known to be well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

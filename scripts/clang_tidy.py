#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs clang-tidy (.clang-tidy) on some sources, for a bounded time; ./dev check calls it.

First those that have changed last, by git's history, then others, in an order that every tree draws
anew. What was found well is not looked at again before it, a header of ours that it includes, or
the list of checks has changed. Findings are errors. Of those that have changed in the last hours
before HEAD and that there is no time for, clang compiles what it can in as much time again: it
refuses some of what g++ takes.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time
from typing import Callable

import changes
import header_check

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/check"
CACHE = ROOT / "build/tidy"
COUNT = 40  # At most so many sources, and none is begun after so many seconds.
SECONDS = 50.0
CLANG, CLANG_TIDY = "clang++-14", "clang-tidy-14"
# Options that only g++ knows, and warnings, which the build checks.
_GCC_ONLY = re.compile(r"-f(?:pch-preprocess|no-gnu-unique)|-W.*")


def _sources() -> dict[str, list[str]]:
    """Returns, for every source of ours that the build compiles, its precompiled header and its
    flags."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        paths = [path]
        if "/Unity/" in entry["file"]:  # This file includes several sources.
            paths = [pathlib.Path(each) for each in
                     re.findall(r'#include "(.*)"', path.read_text() if path.exists() else "")]
        paths = [each for each in paths if ROOT in each.parents and BUILD not in each.parents]
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
    """Replaces the precompiled header of g++ by one that clang makes."""
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


def _precompile_all(sources: dict[str, list[str]]) -> dict[str, list[str]]:
    """Precompiles the headers of all sources, several at a time."""
    distinct = {tuple(flags): flags for flags in sources.values()}
    with concurrent.futures.ThreadPoolExecutor(header_check.workers()) as pool:
        compiled = dict(zip(distinct, pool.map(_precompile, distinct.values())))
    return {path: compiled[tuple(flags)] for path, flags in sources.items()}


def _stamp(path: str, flags: list[str]) -> pathlib.Path:
    words = [CLANG_TIDY, (ROOT / ".clang-tidy").read_text(), *flags]
    return CACHE / f"clang-{header_check.digest(ROOT, header_check.closure(ROOT, path), words)}"


def _in_order(paths: list[str], ages: dict[str, int]) -> list[str]:
    return sorted(changes.drawn(ROOT, paths), key=lambda path: ages.get(path, sys.maxsize))


def _tidy(path: str, flags: list[str]) -> str:
    return header_check.problem(ROOT, [CLANG_TIDY, "--quiet", path, "--", *flags, "-w"])


def _compile(path: str, flags: list[str]) -> str:
    return header_check.problem(ROOT, [CLANG, *flags, "-w", "-fsyntax-only", path])


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="look at all of these, well or not")
    parser.add_argument("--all", action="store_true", help="all of them, however long it takes")
    return parser.parse_args()


def look(paths: list[str], problem: Callable[[str], str], seconds: float) -> dict[str, str]:
    """Returns the problem of each path (empty if none) that there is time for: at least one path
    for each worker."""
    began = time.monotonic()

    def look_in_time(number: int) -> str | None:
        late = number >= header_check.workers() and time.monotonic() - began > seconds
        return None if late else problem(paths[number])

    found = {}
    with concurrent.futures.ThreadPoolExecutor(header_check.workers()) as pool:
        for path, text in zip(paths, pool.map(look_in_time, range(len(paths)))):
            if text is not None:
                found[path] = text
            if text:
                print(text, flush=True)
    return found


def main() -> int:
    arguments = _read_arguments()
    is_unbounded = arguments.all or bool(arguments.paths)
    seconds = float("inf") if is_unbounded else SECONDS
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = _sources()
    stamps = {path: _stamp(path, flags) for path, flags in sources.items()}
    ages = changes.lately(ROOT)
    paths = [path for path in _in_order(list(sources), ages) if not stamps[path].exists()]
    if unknown := [path for path in arguments.paths if path not in sources]:
        sys.exit(f"clang-tidy: the build in build/check does not compile {', '.join(unknown)}")
    paths = arguments.paths or paths
    count = len(paths) if is_unbounded else COUNT
    recent = [path for path in paths[count:] if path in ages]
    # This time is not counted: a precompiled header takes longer than ten sources.
    flags = _precompile_all({path: sources[path] for path in paths[:count] + recent})
    tidied = look(paths[:count], lambda path: _tidy(path, flags[path]), seconds)
    for path, text in tidied.items():
        if not text:
            stamps[path].touch()
    recent = [path for path in paths[:count] if path in ages and path not in tidied] + recent
    compiled = look(recent, lambda path: _compile(path, flags[path]), seconds)
    failed = sum(bool(text) for text in [*tidied.values(), *compiled.values()])
    rest = sum(not stamp.exists() for stamp in stamps.values())
    print(f"clang-tidy: {len(tidied)} sources, {len(compiled)} more compiled, {failed} with "
          f"findings; {rest} of {len(sources)} not known to be well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Compiles every header on its own, so that including one never requires including another
first."""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import Iterator

import changes

COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
         "-DSPDLOG_COMPILED_LIB", "-DSPDLOG_FMT_EXTERNAL"]
_OWN_INCLUDE = re.compile(
    r'^\s*#\s*include\s+["<]((?:stretto|tools|tests|examples|bench)/[^">]+)[">]', re.MULTILINE)
_MPI_INCLUDE = re.compile(r"^\s*#\s*include\s+<mpi\.h>", re.MULTILINE)
_TORCH_INCLUDE = re.compile(r'^\s*#\s*include\s+["<](?:torch|ATen|c10)/', re.MULTILINE)


def workers() -> int:
    """Returns the number of parallel compilations: ./dev's setting."""
    return int(os.environ.get("STRETTO_JOBS", os.cpu_count() or 1))


def closure(root: pathlib.Path, header: str) -> list[str]:
    """Returns the header and every file of ours that it includes, directly or not."""
    found, waiting = set(), [header]
    while waiting:
        path = waiting.pop()
        if not (root / path).is_file():
            path = f"include/{path}"
        if path in found or not (root / path).is_file():
            continue
        found.add(path)
        waiting += _OWN_INCLUDE.findall((root / path).read_text())
    return sorted(found)


def digest(root: pathlib.Path, files: list[str], command: list[str]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for path in files:
        digest.update(path.encode() + b"\0" + (root / path).read_bytes() + b"\0")
    return digest.hexdigest()


def _torch_flags(torch_dir: str, cache: pathlib.Path) -> list[str]:
    """Returns flags with <torch/torch.h> precompiled: it takes ten times longer than a header of
    ours."""
    include = pathlib.Path(torch_dir).resolve().parent.parent.parent / "include"
    flags = ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    version = hashlib.sha256("\0".join([COMPILER, *FLAGS, *flags]).encode()).hexdigest()[:16]
    header = cache / f"torch-{version}.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        header.write_text("#include <torch/torch.h>\n")
        subprocess.run([COMPILER, *[flag for flag in FLAGS if flag != "-fsyntax-only"], *flags,
                        "-x", "c++-header", header, "-o", compiled], check=True)
    return [*flags, "-include", str(header)]


def _mpi_flags() -> list[str]:
    """Returns the include flags of MPI's compiler; empty without MPI."""
    if shutil.which("mpicxx") is None:
        return []
    shown = subprocess.run(["mpicxx", "-show"], capture_output=True, text=True, check=True).stdout
    return [f"-isystem{flag[2:]}" for flag in shlex.split(shown) if flag.startswith("-I")]


def problem(root: pathlib.Path, command: list[str]) -> str:
    """Returns the command's output if it fails, or how it ended; empty if it succeeds."""
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if run.returncode == 0:
        return ""
    return run.stdout.strip() or run.stderr.strip() or f"{command[0]} ended with {run.returncode}"


def check(root: pathlib.Path, headers: list[str], torch_dir: str,
          seconds: float = float("inf")) -> Iterator[tuple[str, str]]:
    """Returns (header, problem) for each header that does not compile. Headers that compiled once
    are remembered by content in build/tidy. Headers that need libtorch are skipped without
    `torch_dir`, those that need MPI without an MPI. After `seconds` no compilation begins, so the
    order matters: headers that changed most recently, or include such files, come first; the rest
    is in an order that depends on the hash of HEAD's tree."""
    cache = root / "build/tidy"
    cache.mkdir(parents=True, exist_ok=True)
    ages = changes.lately(root)
    work = []
    torch_flags = _torch_flags(torch_dir, cache) if torch_dir else []
    mpi_flags = _mpi_flags()
    for header in changes.drawn(root, headers):
        if header.endswith("-inl.h"):
            continue  # It compiles only inside the source that sets its SIMD target.
        files = closure(root, header)
        text = "\n".join((root / path).read_text() for path in files)
        needs_torch, needs_mpi = _TORCH_INCLUDE.search(text), _MPI_INCLUDE.search(text)
        if (needs_torch and not torch_dir) or (needs_mpi and not mpi_flags):
            continue
        extra = (torch_flags if needs_torch else []) + (mpi_flags if needs_mpi else [])
        command = [COMPILER, *FLAGS, "-I.", "-Iinclude", *extra,
                   "-include", header, "-x", "c++", "/dev/null"]
        stamp = cache / digest(root, files, command)
        if not stamp.exists():
            age = min(ages.get(path, sys.maxsize) for path in files)
            work.append((age, header, command, stamp))
    work.sort(key=lambda item: item[0])
    end = time.monotonic() + seconds

    def compile_alone(command: list[str]) -> str | None:
        return None if time.monotonic() > end else problem(root, command)

    with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
        problems = pool.map(lambda item: compile_alone(item[2]), work)
        left = 0
        for (_, header, _, stamp), said in zip(work, problems):
            if said:
                errors = [line for line in said.splitlines() if "error" in line]
                yield header, f"does not compile alone: {[*errors, said[:200]][0]}"
            elif said is None:
                left += 1
            else:
                stamp.touch()
    if left > 0:
        print(f"tidy: no time was left to compile {left} of {len(headers)} headers alone")

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs a function as several ranks: processes forked from this one, which has loaded torch once."""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any, Callable, Iterator

import torch
import torch._dynamo  # DDP and optimizers load this: now once, else in each rank.
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

# This must come before any computation, because OpenMP's threads do not survive a fork.
torch.set_num_threads(1)

# Generous, so that a loaded machine, or one core for all ranks, does not make a test fail.
TIMEOUT_SECONDS = 120


thorough = unittest.skipUnless(
    os.environ.get("STRETTO_THOROUGH"), "it takes long: ./dev test --all runs it"
)


def random_by_seed(test: str) -> random.Random:
    """Returns a generator seeded by STRETTO_SEED, which ./dev sets, and by the test's name."""
    seed = os.environ.get("STRETTO_SEED") or random.randrange(1 << 30)
    print(f"STRETTO_SEED={seed} draws the same again")
    return random.Random(f"{seed} {test}")


def refusal(call: Callable[[], object]) -> str:
    """Returns the text of the exception that the call raises."""
    try:
        call()
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        return str(error)
    raise AssertionError("it was not refused")


def failure(call: Callable[[], object]) -> str:
    """Returns the text of a failed operation, which raises a type of its own."""
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("it did not fail")


@contextlib.contextmanager
def little_shared_memory() -> Iterator[None]:
    """Limits files, and so pieces of shared memory, to 1 MiB in this process for the duration of a
    `with` block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def output_of(*words: object, **options: Any) -> str:
    """Returns the output of `python WORDS`, which must succeed."""
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


# two_programs() puts this before the program.
MEETING = """
import atexit
import sys
import torch
import torch.distributed as dist

def meet():
    place = f"file://{sys.argv[2]}"
    dist.init_process_group("stretto", init_method=place, rank=int(sys.argv[1]), world_size=2)
"""


def two_programs(program: str) -> list[tuple[str, str, int]]:
    """Runs the program as two ranks; returns the output, the error output and the exit status of
    each."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", MEETING + program, str(rank), f"{folder}/store"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        return [(*each.communicate(timeout=TIMEOUT_SECONDS), each.returncode) for each in processes]


def start(path: str, rank: int, size: int, backend: str = "stretto", **options: Any) -> None:
    """Calls init_process_group with a file at `path`."""
    options.setdefault("timeout", datetime.timedelta(seconds=TIMEOUT_SECONDS))
    dist.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=size, **options
    )


def first(call: Callable[[], Any]) -> Any:
    """Returns the result of the call on rank 0. The other ranks wait until it has ended, and return
    None."""
    store = _get_default_store()
    if dist.get_rank() > 0:
        store.wait(["rank 0 is done"])
        return None
    result = call()
    store.set("rank 0 is done", "")
    return result


def _be_rank(function: Callable[..., Any], rank: int, size: int, path: str, answer: int) -> None:
    # A forked process creates PyTorch's thread pool again at its first use, and crashes if two
    # threads do so at once.
    torch.set_num_threads(torch.get_num_threads())
    try:
        result = (True, function(rank, size, path))
    except BaseException:  # The parent reports any exception.
        result = (False, f"rank {rank}:\n{traceback.format_exc()}")
    with os.fdopen(answer, "wb") as pipe:
        pickle.dump(result, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _read(pipe: int, deadline: float) -> bytes | None:
    """Returns the rank's answer, complete when it ends; None when time is up."""
    parts = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def run(function: Callable[[int, int, str], Any], size: int = 2, deaths: int = 0) -> list[Any]:
    """Runs function(rank, size, path) on every rank and returns the results. Fails with the
    tracebacks of the ranks. Exactly `deaths` ranks must end without a result; theirs is None."""
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _be_rank(function, rank, size, os.path.join(folder, "store"), writing)
            os.close(writing)
            children.append((pid, reading))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        results, problems, dead = [], [], []
        for rank, (pid, reading) in enumerate(children):
            said = _read(reading, deadline)
            os.close(reading)
            if said is None:
                os.kill(pid, 9)
                problems.append(f"rank {rank} hangs")
            _, status = os.waitpid(pid, 0)
            if said == b"":
                dead.append(f"rank {rank} gave no answer (wait status {status})")
            fine, result = pickle.loads(said) if said else (True, None)
            results.append(result)
            if not fine:
                problems.append(result)
        if len(dead) != deaths:
            problems += [*dead, f"{len(dead)} have died, not {deaths}"]
        assert not problems, "\n".join(problems)
        return results


def with_group(function: Callable[[int, int], Any], size: int = 2, **options: Any) -> list[Any]:
    """Runs function(rank, size) on every rank of a job."""

    def body(rank: int, size: int, path: str) -> Any:
        start(path, rank, size, **options)
        result = function(rank, size)
        dist.destroy_process_group()
        return result

    return run(body, size)

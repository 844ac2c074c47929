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
import torch._dynamo  # Which DDP and optimizers load: once here, and not in each rank.
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

# Before anything is computed: threads of OpenMP do not survive a fork.
torch.set_num_threads(1)

# Generous: a loaded machine, or one core for all ranks, must not make a test fail.
TIMEOUT_SECONDS = 120


thorough = unittest.skipUnless(
    os.environ.get("STRETTO_THOROUGH"), "it takes long: ./dev test --all runs it"
)


def random_by_seed(test: str) -> random.Random:
    """Numbers by STRETTO_SEED, others for each test: ./dev sets it."""
    seed = os.environ.get("STRETTO_SEED") or random.randrange(1 << 30)
    print(f"STRETTO_SEED={seed} draws the same again")
    return random.Random(f"{seed} {test}")


def refusal(call: Callable[[], object]) -> str:
    """The text of what the call throws."""
    try:
        call()
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        return str(error)
    raise AssertionError("it was not refused")


def failure(call: Callable[[], object]) -> str:
    """The text of what an operation fails with, which has a type of its own."""
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("it did not fail")


@contextlib.contextmanager
def little_shared_memory() -> Iterator[None]:
    """This process gets no more than 1 MiB in one piece meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def output_of(*words: object, **options: Any) -> str:
    """What `python WORDS` says on its way to a good end."""
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


# What two_programs() puts before the program.
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
    """What each of them, a rank of its own, writes to its output and to its error output, and its
    exit status."""
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
    """init_process_group by a file at `path`."""
    options.setdefault("timeout", datetime.timedelta(seconds=TIMEOUT_SECONDS))
    dist.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=size, **options
    )


def first(call: Callable[[], Any]) -> Any:
    """What it returns on rank 0. The others do nothing until then, and have None."""
    store = _get_default_store()
    if dist.get_rank() > 0:
        store.wait(["rank 0 is done"])
        return None
    result = call()
    store.set("rank 0 is done", "")
    return result


def _be_rank(function: Callable[..., Any], rank: int, size: int, path: str, answer: int) -> None:
    # A forked process makes PyTorch's thread pool anew at its first use, and ends where two threads
    # do that at once.
    torch.set_num_threads(torch.get_num_threads())
    try:
        result = (True, function(rank, size, path))
    except BaseException:  # Whatever it is, the parent tells it.
        result = (False, f"rank {rank}:\n{traceback.format_exc()}")
    with os.fdopen(answer, "wb") as pipe:
        pickle.dump(result, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _read(pipe: int, deadline: float) -> bytes | None:
    """What the rank says before it ends; None when time is up."""
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
    """function(rank, size, path) on every rank; their results. Fails with the ranks' tracebacks,
    and unless as many as `deaths` end without a result, for which they have None."""
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
    """function(rank, size) on every rank of a job."""

    def body(rank: int, size: int, path: str) -> Any:
        start(path, rank, size, **options)
        result = function(rank, size)
        dist.destroy_process_group()
        return result

    return run(body, size)

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests how ranks that are children of multiprocessing end, and what the others are told."""

from __future__ import annotations

import atexit
import multiprocessing
import pathlib
import sys
import tempfile
import time
import unittest
from multiprocessing.process import BaseProcess
from typing import Callable

import ranks
import torch
import torch.distributed as dist
from process_group_test import sum_of_ranks

Started = Callable[[str, tuple[object, ...]], list[BaseProcess]]


def use_group_at_exit(rank: int, size: int, path: str) -> None:
    @atexit.register
    def last() -> None:
        sum_of_ranks(size)
        dist.destroy_process_group()
        pathlib.Path(f"{path}.{rank}").touch()

    ranks.start(path, rank, size)


def leave_early(rank: int, size: int, path: str, fails: bool) -> None:
    """The last rank leaves early; the others write the text of their failure."""
    ranks.start(path, rank, size)
    sum_of_ranks(size)
    if rank == size - 1:
        if fails:
            raise KeyError("no such image")
        return
    while not pathlib.Path(f"{path}.left").exists():
        time.sleep(0.01)
    if not fails:  # Communication without that rank continues.
        token = torch.ones(1)
        dist.send(token, 1) if rank == 0 else dist.recv(token, 0)
        dist.recv(token, 1) if rank == 0 else dist.send(token, 0)
    pathlib.Path(f"{path}.{rank}").write_text(
        ranks.failure(lambda: dist.all_reduce(torch.ones(1)))
    )


def by_multiprocessing(method: str, arguments: tuple[object, ...]) -> list[BaseProcess]:
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=leave_early, args=(r, *arguments)) for r in range(3)]
    for process in processes:
        process.start()
    return processes


def by_a_handler(method: str, arguments: tuple[object, ...]) -> list[BaseProcess]:
    """Starts the children in an exception handler, as a program that restarts them after a failure
    does. Forked children then seem to handle that exception, too."""
    try:
        raise ValueError("of the parent")
    except ValueError:
        return by_multiprocessing(method, arguments)


def by_torch(method: str, arguments: tuple[object, ...]) -> list[BaseProcess]:
    return torch.multiprocessing.start_processes(
        leave_early, arguments, nprocs=3, join=False, start_method=method
    ).processes


class ChildrenTest(unittest.TestCase):
    def heard(self, start: Started, method: str, fails: bool) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/store"
            processes = start(method, (3, path, fails))
            processes[-1].join()
            pathlib.Path(f"{path}.left").touch()
            for process in processes:
                process.join()
            return [pathlib.Path(f"{path}.{rank}").read_text() for rank in range(2)]

    def test_functions_of_atexit_use_their_groups(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(use_group_at_exit, (2, f"{folder}/store"), nprocs=2)
            self.assertTrue(all(pathlib.Path(f"{folder}/store.{r}").exists() for r in range(2)))

    def test_a_child_that_returns_has_left_its_groups(self) -> None:
        """A forked child does not run functions of atexit."""
        for start in (by_torch, by_a_handler):
            texts = self.heard(start, "fork", False)
            self.assertIn("rank 2 has destroyed its communicator", " ".join(texts))

    @unittest.skipIf(sys.version_info >= (3, 13), "such a Python tells nobody of the exception")
    def test_others_hear_of_the_exception_that_ended_a_child(self) -> None:
        ways = ((by_multiprocessing, "fork"), (by_torch, "fork"), (by_torch, "spawn"))
        for start, method in ways:
            with self.subTest(start=start.__name__, method=method):
                texts = self.heard(start, method, True)
                self.assertIn("rank 2 has ended by KeyError: 'no such image'", " ".join(texts))

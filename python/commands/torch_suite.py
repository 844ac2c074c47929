#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""PyTorch's own distributed tests, as they ship in its wheel, on stretto and on Gloo.

Writes the outcome of every test of torch.testing._internal.distributed.distributed_test, for each
backend and world: as lines, with --json as JSON, with --page as docs/internals/torch_suite.md. The
suite chooses its tests by the name of the backend, and does not know stretto: it is loaded as for
Gloo, and then its variable with that name is set. Tests that it skips because "only MPI" can do
them are then run as for MPI, and a test that wants NCCL but no GPU as for NCCL. Four tests choose a
device by that variable, and know only PyTorch's names: in their bodies it says "gloo". Nothing else
in PyTorch is changed.

    python python/commands/torch_suite.py --worlds 2,3 --page docs/internals/torch_suite.md
    python python/commands/torch_suite.py --backends stretto --worlds 2 --only all_gather
    python python/commands/torch_suite.py --worlds 2 --json all.json

Exits with 1 if a test fails on stretto that passes on Gloo, or (without Gloo) if any fails, and the
page does not say why.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

Outcomes = dict[str, list[str]]  # name of a test: [outcome, reason]

# Failures on stretto that only PyTorch's own backends can avoid, and the reasons.
_NAMES = "dist.monitored_barrier accepts no backend but Gloo: use stretto.monitored_barrier"
EXPLAINED = {
    "test_ddp_logging_data_cpu": "the test expects the backend's name in DDP's log, where PyTorch "
    "(ProcessGroup::getBackendName) calls every backend that is not its own `custom`",
    "test_monitored_barrier_gloo": _NAMES,
    "test_monitored_barrier_gloo_subgroup": _NAMES,
}
NEEDS_A_GPU = "needs a GPU"
NEEDS_THREE_RANKS = "needs 3 ranks: its group contains rank 2"
# This test requires NCCL but does not use it.
FOR_NCCL = "test_batch_isend_irecv_op_list_err"


def needs_a_gpu(test: unittest.TestCase) -> bool:
    """Checks the test's name, its decorators (only the outermost of which reports why it skips),
    and its body."""
    name = test._testMethodName
    if re.search("cuda|nccl", name):
        return True
    source = inspect.getsource(inspect.unwrap(getattr(test, name)))
    uses = r"@(skip_if_lt_x_gpu|skip_if_no_gpu)\b|\binit_multigpu_helper\("
    return re.search(uses, source) is not None


class Recorder(unittest.TextTestResult):
    """Records the outcome of each test."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.outcomes: Outcomes = {}

    def _note(self, test, outcome, reason=""):
        self.outcomes[test._testMethodName] = [outcome, reason.strip()]

    def addSuccess(self, test):
        super().addSuccess(test)
        self._note(test, "pass")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(test, "skip", NEEDS_A_GPU if needs_a_gpu(test) else reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note(test, "FAIL", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self._note(test, "FAIL", str(err[1]))


def run_here(backend: str, world: int, only: str, loaded_for: str, folder: str) -> Outcomes:
    """Runs the tests in this process and its children, with their files in `folder`."""
    os.environ.update(
        BACKEND=loaded_for,
        WORLD_SIZE=str(world),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/shared_init_file",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="120",
    )
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    import torch
    from torch.testing._internal.distributed import distributed_test as suite

    suite.BACKEND = backend
    torch.set_num_threads(1)

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        """Forks where PyTorch spawns, because loading torch for each test takes longer than the
        tests."""

        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _test_accumulate_gradients_no_sync(self, *args, **kwargs):
            with unittest.mock.patch.object(suite, "BACKEND", "gloo"):
                super()._test_accumulate_gradients_no_sync(*args, **kwargs)

    loader = unittest.TestLoader()
    names = [n for n in loader.getTestCaseNames(TorchSuite) if re.search(only, n)]
    tests = unittest.TestSuite(TorchSuite(name) for name in names)
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=2, resultclass=Recorder)
    return runner.run(tests).outcomes


def run_apart(backend: str, world: int, only: str, loaded_for: str = "gloo") -> Outcomes:
    """Runs the tests in a separate process, because the suite reads the backend's name when it is
    loaded."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        command = [sys.executable, __file__, "--here", answer.name, "--only", only]
        subprocess.run(
            [*command, "--backends", backend, "--worlds", str(world), "--loaded-for", loaded_for],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        text = answer.read()
    if not text:
        sys.exit(f"the tests on {backend} with {world} ranks ended without an answer")
    return json.loads(text)


def run_all(backend: str, world: int, only: str) -> Outcomes:
    outcomes = run_apart(backend, world, only)
    of_mpi = [name for name, (_, reason) in outcomes.items() if reason.startswith("Only MPI")]
    if backend == "stretto" and world == 2:
        for name in [name for name in of_mpi if re.search("(?<!_full)_group$", name)]:
            outcomes[name] = ["skip", NEEDS_THREE_RANKS]
            of_mpi.remove(name)
    if backend == "stretto" and of_mpi:
        outcomes |= run_apart(backend, world, f"^({'|'.join(of_mpi)})$", "mpi")
    if backend == "stretto" and FOR_NCCL in outcomes:
        outcomes |= run_apart(backend, world, f"^{FOR_NCCL}$", "nccl")
    return outcomes


def reason_of(text: str) -> str:
    """Shortens a text to one line of a table."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    line = (errors or lines or [""])[-1].strip()
    return line.replace("|", "\\|")[:160]


def page(results: dict[str, dict[str, Outcomes]]) -> str:
    """Returns docs/internals/torch_suite.md: the number of tests with each outcome, and why not all
    pass."""
    lines = [
        "# PyTorch's own distributed tests",
        "",
        "`./dev torch-suite --page docs/internals/torch_suite.md` made this page. The command runs",
        "the distributed tests that ship in PyTorch's wheel",
        "(`torch.testing._internal.distributed.distributed_test`) on stretto and on Gloo.",
        "",
        "The suite chooses its tests by the name of the backend, and does not know stretto. It is",
        "loaded as for Gloo, and then its variable with that name is set to `stretto`. Four tests",
        "choose a device by this variable; in their bodies it says `gloo`. Tests that the suite",
        "allows with MPI only are loaded as for MPI, and a test that wants NCCL but no GPU as for",
        "NCCL. Nothing else in PyTorch is changed. Ranks are forked.",
        "",
        "| ranks | backend | passed | skipped | failed |",
        "|---|---|---|---|---|",
    ]
    for world, backends in results.items():
        for backend, outcomes in backends.items():
            count = collections.Counter(outcome for outcome, _ in outcomes.values())
            row = [world, backend, *(str(count[key]) for key in ("pass", "skip", "FAIL"))]
            lines.append(f"| {' | '.join(row)} |")
    different: dict[tuple[str, ...], list[str]] = {}
    skipped: dict[str, collections.Counter[str]] = {}
    for world, backends in results.items():
        for name in sorted({name for outcomes in backends.values() for name in outcomes}):
            each = [outcomes.get(name, ["-", ""]) for outcomes in backends.values()]
            why = next((reason_of(reason) for _, reason in each if reason), "")
            if all(outcome == "skip" for outcome, _ in each):
                skipped.setdefault(why, collections.Counter())[world] += 1
            elif any(outcome != "pass" for outcome, _ in each):
                row = (name, *(outcome for outcome, _ in each), EXPLAINED.get(name, why))
                different.setdefault(row, []).append(world)
    lines += ["", "## Tests that differ or fail", ""]
    lines += [f"| test | ranks | {' | '.join(backends)} | why |"]
    lines += ["|---|---|" + "---|" * (len(backends) + 1)]
    for (name, *others), worlds in sorted(different.items()):
        lines.append(f"| {name} | {', '.join(worlds)} | {' | '.join(others)} |")
    lines += ["", "## Tests that both backends skip", ""]
    lines += [f"| reason |{''.join(f' {world} ranks |' for world in results)}"]
    lines += ["|---|" + "---|" * len(results)]
    for reason, count in sorted(skipped.items(), key=lambda item: -item[1].total()):
        lines.append(f"| {reason} |{''.join(f' {count[world]} |' for world in results)}")
    return "\n".join(lines) + "\n"


def regressions(results: dict[str, dict[str, Outcomes]]) -> list[str]:
    """Returns the tests that fail on stretto and pass on Gloo, or were not run on Gloo, except
    those in EXPLAINED."""
    found = []
    for world, backends in results.items():
        gloo = backends.get("gloo", {})
        for name, (outcome, reason) in backends.get("stretto", {}).items():
            if outcome != "FAIL" or name in EXPLAINED:
                continue
            if gloo.get(name, ["pass"])[0] == "pass":
                found.append(f"{name} with {world} ranks: {reason_of(reason)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default="stretto,gloo")
    parser.add_argument("--worlds", default="2,3,4")
    parser.add_argument("--only", default="", help="a regular expression for names of tests")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the outcomes")
    parser.add_argument("--page", type=pathlib.Path, help="a file for the page")
    parser.add_argument("--loaded-for", help=argparse.SUPPRESS)
    parser.add_argument("--here", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        world = int(arguments.worlds)
        with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
            outcomes = run_here(
                arguments.backends, world, arguments.only, arguments.loaded_for, folder
            )
        arguments.here.write_text(json.dumps(outcomes))
        return
    results = {
        world: {
            backend: run_all(backend, int(world), arguments.only)
            for backend in arguments.backends.split(",")
        }
        for world in arguments.worlds.split(",")
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.page:
        arguments.page.write_text(page(results))
    for world, backends in results.items():
        for backend, outcomes in backends.items():
            count = collections.Counter(outcome for outcome, _ in outcomes.values())
            print(f"{backend}, {world} ranks: {len(outcomes)} tests, {dict(count)}")
    worse = regressions(results)
    print("\n".join(worse))
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()

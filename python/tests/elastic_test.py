# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests of stretto.ElasticJob: processes die and join while the others continue."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Iterable, Iterator

import ranks
import torch
import torch.distributed as dist
from ranks import failure, refusal
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/13_elastic.py"
RUN = [sys.executable, "-m", "stretto", "run", "--no-prefix"]
# A join within this time has noticed a death and not waited for a timeout.
SOON_SECONDS = 20


class Launcher:
    """`stretto run`, and the output of the processes that it has started."""

    def __init__(self, *words: object) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            ["timeout", str(ranks.TIMEOUT_SECONDS), *RUN, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def next(self, pattern: str) -> re.Match[str]:
        """Returns the match of the next line that fits the pattern, and skips lines before it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.fullmatch(pattern, line.rstrip("\n"))
            if found is not None:
                return found
        raise AssertionError(f"it has ended before that: {self.end()}")

    def end(self) -> tuple[int, str]:
        """Waits for the launcher; returns its exit status and stderr."""
        status = self._process.wait()
        self._errors.seek(0)
        return status, self._errors.read()

    def kill(self) -> None:
        """Kills the launcher and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def place() -> Iterator[dict[str, str]]:
    """Yields the variables for meeting in a launcher's store. The launcher's own process does
    nothing."""
    says = 'echo "$STRETTO_RENDEZVOUS" "$STRETTO_JOB_KEY"; sleep 1000'
    launcher = Launcher("-n", 1, "--", "sh", "-c", says)
    try:
        rendezvous, key = launcher.next(r"(\S+) (\S+)").groups()
        yield {"STRETTO_RENDEZVOUS": rendezvous, "STRETTO_JOB_KEY": key}
    finally:
        launcher.kill()


def run_as_launched(
    body: Callable[[int, int, str], Any], size: int, launched: int = 0, **options: Any
) -> list[Any]:
    """Runs body() in processes with the variables that a launcher of `launched` (or all) processes
    sets."""
    with place() as where:

        def be_launched(rank: int, size: int, path: str) -> Any:
            os.environ.update(where, STRETTO_RANK=str(rank), STRETTO_SIZE=str(launched or size))
            return body(rank, size, path)

        return ranks.run(be_launched, size, **options)


def come_later(begun: pathlib.Path) -> None:
    """Becomes a process that no launcher has started, once the file `begun` exists."""
    del os.environ["STRETTO_RANK"], os.environ["STRETTO_SIZE"]
    while not begun.exists():
        time.sleep(0.01)


def sum_of(value: float, group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor(value)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("elastic_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def trained_by_one(example: Any, steps: int) -> Any:
    state = example.State()
    for _ in range(steps):
        state.take_step(state.network)
    return state


class TrainingTest(unittest.TestCase):
    def expect_weights(self, found: Iterable[float], wanted: torch.Tensor) -> None:
        for weight, expected in zip(found, wanted.tolist()):
            self.assertAlmostEqual(weight, expected, delta=1e-9)

    def test_two_die_and_come_back(self) -> None:
        """Two processes die: the first one, which has the state for newcomers, and another one
        while the remaining one is meeting again."""
        steps, program = 500, (sys.executable, EXAMPLE)
        launcher = Launcher("-n", 3, "--restarts", 2, "--", *program, steps, 3)
        self.addCleanup(launcher.kill)

        def generation() -> tuple[int, list[int]]:
            """Returns the step at which the generation continues, and the process ID of each
            rank."""
            line = r"generation .*: rank (\d) of 3 goes on at step (\d+) \(pid (\d+)\)"
            said = sorted(tuple(map(int, launcher.next(line).groups())) for _ in range(3))
            self.assertEqual([rank for rank, _, _ in said], [0, 1, 2])
            return said[0][1], [pid for _, _, pid in said]

        _, first = generation()
        time.sleep(1)  # Time for some steps.
        for victim in (first[0], first[2]):
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.01)
        step, second = generation()
        self.assertGreater(step, 0)
        self.assertEqual(second[0], first[1])
        self.assertFalse(set(second[1:]) & set(first))
        results = {launcher.next(rf"after {steps} steps .* are (.*)")[1] for _ in range(3)}
        status, errors = launcher.end()
        self.assertEqual(status, 0, errors)
        # The others were told how the victim ended.
        self.assertRegex(errors, r"(?m)^meeting again: .*killed by SIGKILL")
        (found,) = results
        wanted = trained_by_one(load_example(), steps).network.weight[0]
        self.expect_weights(map(float, found.split()), wanted)

    def test_a_job_begins_where_the_file_of_the_one_before_ends(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for steps, first_step in ((120, 0), (150, 100)):
                program = (sys.executable, EXAMPLE, steps, 2, f"{folder}/state.pt")
                launcher = Launcher("-n", 2, "--", *program)
                self.addCleanup(launcher.kill)
                for _ in range(2):
                    begun = launcher.next(r"generation 1: rank \d of 2 goes on at step (\d+) .*")
                    self.assertEqual(int(begun[1]), first_step)
                results = {launcher.next(rf"after {steps} steps .* are (.*)")[1] for _ in range(2)}
                status, errors = launcher.end()
                self.assertEqual(status, 0, errors)
                (found,) = results
                wanted = trained_by_one(load_example(), steps).network.weight[0]
                self.expect_weights(map(float, found.split()), wanted)

    def test_the_others_go_on_and_let_in_a_new_one(self) -> None:
        steps = 300

        def body(rank: int, size: int, path: str) -> tuple[int, int, list[float]]:
            import stretto

            state = example.State()
            gone_on = pathlib.Path(f"{path}-gone-on")
            if rank == 3:
                come_later(gone_on)
            with stretto.ElasticJob() as job:
                while job.join():
                    if job.generation == 1 and dist.get_rank() == 0:
                        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
                    if job.generation == 2:
                        gone_on.touch()
                        while not job.has_newcomers():
                            time.sleep(0.001)
                    size = dist.get_world_size()
                    with contextlib.suppress(dist.DistBackendError):
                        if example.train(job, state, steps):
                            job.finish()
                assert job.generation == 3 and not dist.is_initialized()
            return state.step, size, state.network.weight.flatten().tolist()

        example = load_example()
        wanted = trained_by_one(example, steps)  # Before the forks, as it loads much of PyTorch.
        results = run_as_launched(body, 4, launched=3, deaths=1)
        results.remove(None)
        self.assertEqual(results, [results[0]] * 3)
        self.assertEqual(results[0][:2], (steps, 3))
        self.expect_weights(results[0][2], wanted.network.weight.flatten())
        wanted.take_step(wanted.network)
        self.assertNotAlmostEqual(results[0][2][0], wanted.network.weight[0, 0].item(), delta=1e-6)

    def test_the_other_dies_while_a_newcomer_takes_its_state(self) -> None:
        """The newcomer then trains from its own initial state, and not from the other's
        parameters."""
        steps = 30

        def body(rank: int, size: int, path: str) -> tuple[int, list[float]]:
            import stretto

            state = example.State()
            begun = pathlib.Path(f"{path}-begun")
            if rank == 1:
                come_later(begun)
            with stretto.ElasticJob() as job:
                while job.join():
                    if job.generation == 1:
                        for _ in range(10):
                            state.take_step(state.network)
                        begun.touch()
                        while not job.has_newcomers():
                            time.sleep(0.001)
                        continue
                    if rank == 0:
                        setattr(dist, "broadcast_object_list", lambda *_, **__: os._exit(0))
                    with contextlib.suppress(dist.DistBackendError):
                        if example.train(job, state, steps):
                            job.finish()
            return state.step, state.network.weight.flatten().tolist()

        example = load_example()
        wanted = trained_by_one(example, steps)
        died, (step, found) = run_as_launched(body, 2, launched=1, deaths=1)
        self.assertEqual((died, step), (None, steps))
        self.expect_weights(found, wanted.network.weight.flatten())


class MembersTest(unittest.TestCase):
    def test_a_death_is_noticed_wherever_the_others_wait(self) -> None:
        """They wait in an operation, in the creation of a group, for a key, and in join()."""

        def body(rank: int, size: int, path: str) -> list[str]:
            import stretto

            with stretto.ElasticJob(timeout=datetime.timedelta(seconds=2 * SOON_SECONDS)) as job:
                job.join()
                place = dist.get_rank()
                assert sum_of(place + 1) == 6
                pair = dist.new_group([0, 1])
                if place < 2:
                    assert sum_of(1, pair) == 2
                dist.barrier()
                if place == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                began = time.monotonic()
                store = _get_default_store()
                store.set_timeout(datetime.timedelta(seconds=2 * SOON_SECONDS))
                told = [
                    failure(lambda: store.get("what rank 2 would set")),
                    failure(lambda: dist.new_group([0, 1, 2])),
                    failure(lambda: sum_of(1)),
                ]
                job.join()
                assert time.monotonic() - began < SOON_SECONDS
                assert job.generation == 2 and dist.get_world_size() == 2
                assert dist.get_rank() == place
                assert sum_of(1, dist.new_group([0, 1])) == 2
                dist.barrier()
                return told

        told_to = [told for told in run_as_launched(body, 3, deaths=1) if told is not None]
        self.assertEqual(len(told_to), 2)
        for told in told_to:
            for text in told[:2]:
                self.assertRegex(text, r"rank 2, process \d \(.* pid \d+\), has left the job")
            self.assertIn("rank 2", told[2])

    def test_a_process_that_dies_while_the_others_wait_for_it_in_join(self) -> None:
        def body(rank: int, size: int, path: str) -> tuple[int, int] | None:
            import stretto

            with stretto.ElasticJob() as job:
                job.join()
                if dist.get_rank() == 0:
                    # The others have left this generation, so they are on their way into join().
                    failure(lambda: sum_of(1))
                    os.kill(os.getpid(), signal.SIGKILL)
                job.join()
                dist.barrier()
                return job.generation, dist.get_world_size()

        results = run_as_launched(body, 3, deaths=1)
        self.assertCountEqual(results, [None, (2, 2), (2, 2)])

    def test_a_newcomer(self) -> None:
        """It comes after the others have met, and receives the first rank's parameters."""

        def body(rank: int, size: int, path: str) -> list[float]:
            import stretto

            begun = pathlib.Path(f"{path}-begun")
            if rank == 2:
                come_later(begun)
            with stretto.ElasticJob() as job:
                assert job.generation == 0
                job.join()
                network = nn.Linear(2, 1)
                if rank < 2:
                    assert not job.has_newcomers()
                    # The program handles this failure, so it does not end the job.
                    nn.init.constant_(network.weight, dist.get_rank())
                    failure(lambda: stretto.verify_replicas(network))
                    begun.touch()
                    while not job.has_newcomers():
                        time.sleep(0.001)
                    job.join()
                assert job.generation == 2 and dist.get_world_size() == 3
                assert dist.get_rank() == rank or rank < 2
                model = DistributedDataParallel(network)
                assert not job.has_newcomers()
                assert sum_of(1, dist.new_group([0, 1, 2])) == 3
                dist.barrier()
                return nn.utils.parameters_to_vector(model.parameters()).tolist()

        first, *others = run_as_launched(body, 3, launched=2)
        self.assertEqual(others, [first] * 2)

    def test_too_few(self) -> None:
        def body(rank: int, size: int, path: str) -> list[str]:
            import stretto

            told = [refusal(lambda: stretto.ElasticJob(min_size=0))]
            job = stretto.ElasticJob(min_size=2, join_timeout=0.2)
            told += [failure(job.join), failure(job.join)]
            assert not dist.is_initialized()
            job.leave()
            return [*told, refusal(job.join)]

        (told,) = run_as_launched(body, 1)
        self.assertIn("min_size is 0", told[0])
        self.assertIn("1 of at least 2 processes have come", told[1])
        self.assertIn("1 of at least 2 processes have come", told[2])
        self.assertIn("has left the job: a new ElasticJob", told[3])

    def test_others_hear_of_the_exception_that_ends_the_block(self) -> None:
        def body(rank: int, size: int, path: str) -> str:
            import stretto

            try:
                with stretto.ElasticJob() as job:
                    job.join()
                    if rank == 1:
                        raise KeyError("no such image")
                    return failure(lambda: sum_of(1))
            except KeyError:
                return ""

        self.assertIn("has ended by KeyError: 'no such image'", run_as_launched(body, 2)[0])


class PermanentFailureTest(unittest.TestCase):
    """A failure that a new generation cannot repair: join() raises it again, even though the
    program has caught it."""

    def expect_end(self, mistake: Callable[[int], object]) -> None:
        def body(rank: int, size: int, path: str) -> list[str]:
            import stretto

            told = []
            own, other = (pathlib.Path(f"{path}-failed-{each}") for each in (rank, 1 - rank))

            def run_job() -> None:
                with stretto.ElasticJob() as job:
                    while job.join():
                        assert job.generation == 1, told
                        told.append(failure(lambda: mistake(dist.get_rank())))
                        own.touch()  # Neither leaves the job before the other has failed, too.
                        while not other.exists():
                            time.sleep(0.001)

            return [failure(run_job), *told]

        for raised, told in run_as_launched(body, 2):
            self.assertIn(told.splitlines()[0], raised)

    def test_of_the_group(self) -> None:
        self.expect_end(lambda rank: dist.all_reduce(torch.ones(2 + rank)))

    def test_of_one_operation(self) -> None:
        def compare(rank: int) -> None:
            import stretto

            network = nn.Linear(1, 1)
            nn.init.constant_(network.weight, rank)
            stretto.verify_replicas(network)

        self.expect_end(compare)

    def test_of_a_group_that_is_to_be_made(self) -> None:
        def make_group(rank: int) -> None:
            os.environ["STRETTO_ALGORITHM"] = "direct" if rank == 0 else "ring"
            dist.new_group()

        self.expect_end(make_group)


class WithoutLauncherTest(unittest.TestCase):
    def test_a_job_of_one_process(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            import stretto

            options = stretto.Options(warn_after=5)
            with self.assertRaisesRegex(TypeError, "datetime.timedelta, not 5"):
                stretto.ElasticJob(timeout=5)
            with stretto.ElasticJob(timeout=datetime.timedelta.max, pg_options=options) as job:
                for generation in (1, 2):
                    job.join()
                    assert job.generation == generation and dist.get_world_size() == 1
                    assert sum_of(7) == 7 and not job.has_newcomers()
                    assert sum_of(3, dist.new_group([0])) == 3
                job.finish()
                assert not job.join()
            assert not dist.is_initialized()

        ranks.run(body, 1)

    def test_its_store_is_like_those_of_pytorch(self) -> None:
        def use(store: Any) -> list[Any]:  # PyTorch's types lack some of these functions.
            store.set("a", "1")
            store.append("a", "2")
            found: list[Any] = [store.get("a"), store.add("n", 3), store.add("n", -5)]
            found += [store.compare_set("new", "", "x"), store.compare_set("new", "y", "z")]
            found += [store.compare_set("absent", "y", "z"), store.check(["absent"])]
            found += [store.compare_set("new", "x", "z"), store.check(["a", "n"])]
            store.multi_set(["b", "c"], ["3", b"\xff\0"])
            found += [store.multi_get(["c", "b"]), store.num_keys()]
            found += [store.delete_key("b"), store.delete_key("b")]
            store.wait(["a", "c"])
            found += [store.clone().get("a"), store.has_extended_api()]
            if hasattr(store, "list_keys"):  # Not in every version of PyTorch.
                found.append(sorted(store.list_keys()))
            store.set_timeout(datetime.timedelta(seconds=0.05))
            for wait in (
                lambda: store.get("never"),
                lambda: store.wait(["never"], datetime.timedelta(seconds=0.05)),
            ):
                try:
                    wait()
                except dist.DistStoreError:
                    found.append("late")
            return found

        def body(rank: int, size: int, path: str) -> None:
            import stretto

            for _ in range(2):  # Without a launcher, and then with one.
                with stretto.ElasticJob() as job:
                    job.join()
                    ours = _get_default_store()
                    while isinstance(ours, dist.PrefixStore):
                        ours = ours.underlying_store
                    found, wanted = use(ours), use(dist.HashStore())
                    assert found == wanted, (found, wanted)
                    assert "256" in refusal(lambda: ours.set("k" * 300, ""))
                os.environ.update(where, STRETTO_RANK="0", STRETTO_SIZE="1")

        with place() as where:
            ranks.run(body, 1)

    def test_other_launchers_are_refused(self) -> None:
        def body(rank: int, size: int, path: str) -> str:
            import stretto

            os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost")
            return refusal(stretto.ElasticJob)

        self.assertIn("meets in the store of stretto run", ranks.run(body, 1)[0])

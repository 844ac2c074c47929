# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that the flight record has PyTorch's format, so that PyTorch's tool can compare the ranks'
records."""

from __future__ import annotations

import datetime
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist

# Before 2.12, PyTorch's tool knows operations of NCCL only.
IS_OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12)
LIBRARY = "nccl" if IS_OLD else "gloo"
TOOL = "torch.distributed.flight_recorder.fr_trace"


def read(prefix: str, rank: int) -> dict:
    return pickle.loads(pathlib.Path(f"{prefix}{rank}").read_bytes())


def start_recording(prefix: str, rank: int, size: int, path: str) -> None:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
    ranks.start(path, rank, size)
    dist.barrier()


class FlightRecorderTest(unittest.TestCase):
    def test_records(self) -> None:
        def body(rank: int, size: int) -> str:
            import stretto

            for _ in range(3):
                dist.all_reduce(torch.ones(4, 2))
            pair = dist.new_group([0, 1], group_desc="pair")
            dist.all_gather_into_tensor(torch.empty(6), torch.ones(3), group=pair)
            other = 1 - rank
            transfer = dist.isend if rank == 0 else dist.irecv
            transfer(torch.ones(5), other, group=pair).wait()  # It is number 1, as the gather is.
            late = dist.irecv(torch.empty(1), 1) if rank == 0 else None
            assert stretto.dump_flight_record(prefix) == f"{prefix}{rank}"
            dist.barrier()
            if rank == 0:
                late.wait()
            else:
                dist.send(torch.ones(1), 0)
            return pair.group_name

        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "flight_")
            names_of = ranks.with_group(body)
            first, second = read(prefix, 0), read(prefix, 1)
            names = [entry["profiling_name"] for entry in second["entries"]]
            self.assertIn(f"{LIBRARY}:all_reduce", names)
            self.assertIn(f"{LIBRARY}:recv 1<-0", names)
            for entry in second["entries"]:
                self.assertEqual(entry["state"], "completed", entry)
                self.assertGreaterEqual(entry["duration_ms"], 0)
            reduced = next(e for e in first["entries"] if e["profiling_name"] == names[0])
            self.assertEqual(reduced["input_sizes"], [[4, 2]])
            self.assertEqual(reduced["input_dtypes"], ["Float"])
            self.assertEqual(first["entries"][-1]["state"], "started")
            gathered = next(e for e in first["entries"] if "all_gather" in e["profiling_name"])
            name, description = gathered["process_group"]
            self.assertEqual((name, description), (names_of[0], "pair"))
            self.assertEqual(first["pg_config"][name]["ranks"], "[0, 1]")
            self.assertNotEqual(gathered["pg_id"], reduced["pg_id"])
            self.assertIn(str(gathered["pg_id"]), first["pg_status"])
            told = os.path.join(folder, "told.db")
            ranks.output_of("-m", TOOL, folder, "-o", told)
            _, database = pickle.loads(pathlib.Path(told).read_bytes())
            matched = [each.collective_name for each in database.collectives if each.pass_check]
            name = f"{LIBRARY}:all_reduce"
            self.assertEqual(matched.count(name), names.count(name))

    def test_an_entry_is_overwritten_while_its_operation_goes_on(self) -> None:
        """The end of the first operation must not be recorded in the entry that has replaced its
        own."""

        def body(rank: int, size: int, path: str) -> list[str]:
            import stretto

            os.environ["TORCH_FR_BUFFER_SIZE"] = "3"
            ranks.start(path, rank, size)
            first = dist.irecv(torch.empty(1), 1) if rank == 0 else None
            for _ in range(2):
                dist.all_reduce(torch.ones(1))
            if rank == 1:
                dist.send(torch.ones(1), 0)
                dist.barrier()
                dist.send(torch.ones(1), 0)
                return []
            late = dist.irecv(torch.empty(1), 1)
            first.wait()
            entries = pickle.loads(stretto._module().flight_record())["entries"]
            dist.barrier()
            late.wait()
            return [entry["state"] for entry in entries]

        self.assertEqual(ranks.run(body)[0], ["completed", "completed", "started"])

    def test_calls_that_are_refused_are_not_counted(self) -> None:
        """One rank's refused call must not shift its operation numbers against those of the other
        ranks."""

        def body(rank: int, size: int) -> list[tuple]:
            import stretto

            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            for _ in range(rank):
                ranks.refusal(lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2)))
                ranks.refusal(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
            sparse = torch.ones((4, 6) if rank == 0 else (6, 4)).to_sparse()
            assert "[6, 4]" in ranks.refusal(lambda: dist.all_reduce(sparse))
            dist.all_reduce(torch.ones(2))
            entries = pickle.loads(stretto._module().flight_record())["entries"]
            assert all(entry["retired"] for entry in entries), entries
            last = entries[-1]["collective_seq_id"]
            assert last == backend._get_sequence_number_for_group()
            return [(each["profiling_name"], each["collective_seq_id"]) for each in entries]

        first, second = ranks.with_group(body)
        self.assertEqual(first, second)

    def test_calls_for_which_there_is_no_memory_are_not_counted(self) -> None:
        """The record does not report a failure of the group either."""

        def body(rank: int, size: int, path: str) -> list[tuple]:
            import stretto

            start_recording(prefix, rank, size, path)
            own = torch.ones(2 << 20)
            outputs = [torch.empty_like(own) for _ in range(size)]
            with ranks.little_shared_memory():
                text = ranks.failure(lambda: dist.all_gather(outputs, own))
            assert "File too large" in text, text
            dist.barrier()
            entries = pickle.loads(stretto._module().flight_record())["entries"]
            return [(each["profiling_name"], each["collective_seq_id"]) for each in entries]

        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "flight_")
            for entries in ranks.run(body):
                self.assertEqual(entries, [(f"{LIBRARY}:barrier", 1), (f"{LIBRARY}:barrier", 2)])
            self.assertEqual(os.listdir(folder), [])

    def test_groups_that_are_gone_do_not_mix_with_those_of_their_names(self) -> None:
        def body(rank: int, size: int, path: str) -> list[int]:
            import stretto

            for turn in range(2):
                ranks.start(f"{path}{turn}", rank, size)
                dist.all_reduce(torch.ones(2))
                entries = pickle.loads(stretto._module().flight_record())["entries"]
                dist.destroy_process_group()
            return [each["collective_seq_id"] for each in entries]

        for numbers in ranks.run(body):
            self.assertEqual(numbers, sorted(set(numbers)))

    def test_time_is_up(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            start_recording(prefix, rank, size, path)
            if rank == 0:
                call()
            else:
                time.sleep(1)

        def reduce_soon() -> None:
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            backend.set_timeout(datetime.timedelta(seconds=0.2))
            ranks.failure(lambda: dist.all_reduce(torch.ones(7)))

        def wait_at_barrier() -> None:
            import stretto

            soon = datetime.timedelta(seconds=0.2)
            ranks.failure(lambda: stretto.monitored_barrier(timeout=soon))

        for call, sizes in ((reduce_soon, [[7]]), (wait_at_barrier, [])):
            with self.subTest(call=call.__name__), tempfile.TemporaryDirectory() as folder:
                prefix = os.path.join(folder, "timeout_")
                ranks.run(body)
                last = read(prefix, 0)["entries"][-1]
                self.assertEqual((last["state"], last["input_sizes"]), ("started", sizes))
                self.assertEqual((last["retired"], last["timeout_ms"]), (True, 200))

    @unittest.skipIf(IS_OLD, "C++ programs write what PyTorch's tool reads from 2.12 on")
    def test_of_programs_in_cpp(self) -> None:
        """The two programs call different operations; PyTorch's tool says which rank called
        which."""
        program = pathlib.Path(os.environ["STRETTO_BUILD_DIR"]) / "bin" / "fault_rank_program"
        modes = f'[ "$STRETTO_LOCAL_RANK" = 0 ] && exec {program} private; exec {program} barrier'
        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "rank_")
            subprocess.run(
                [os.environ["STRETTO_PROGRAM"], "run", "-n", "2", "--", "sh", "-c", modes],
                env={**os.environ, "STRETTO_FLIGHT_RECORD": prefix},
                timeout=ranks.TIMEOUT_SECONDS,
                capture_output=True,
            )
            for rank, name in enumerate(("gloo:all_reduce", "gloo:barrier")):
                (entry,) = read(prefix, rank)["entries"]
                self.assertEqual(entry["profiling_name"], name)
                self.assertEqual((entry["state"], entry["retired"]), ("started", True))
            told = subprocess.run(
                [sys.executable, "-m", TOOL, folder], capture_output=True, text=True, check=True
            )
        self.assertIn("Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH", told.stderr)

    def test_a_worker_is_asked(self) -> None:
        """PyTorch's worker server is asked from outside while the program does something else."""

        def body(rank: int, size: int) -> None:
            from torch.distributed.elastic.control_plane import _worker_server

            dist.all_reduce(torch.ones(3))
            with tempfile.TemporaryDirectory() as folder, _worker_server(f"{folder}/socket"):
                with socket.socket(socket.AF_UNIX) as caller:
                    caller.connect(f"{folder}/socket")
                    asked = "POST /handler/dump_stretto_trace_pickle HTTP/1.0"
                    caller.sendall(f"{asked}\r\nContent-Length: 0\r\n\r\n".encode())
                    with caller.makefile("rb") as answer:
                        head, _, told = answer.read().partition(b"\r\n\r\n")
            assert b" 200 " in head, head
            assert pickle.loads(told)["entries"][-1]["input_sizes"] == [[3]]

        ranks.with_group(body, 1)

    def test_an_end_in_order_is_no_failure(self) -> None:
        """A posted receive that nobody answers does not count as a failure."""

        def body(rank: int, size: int, path: str) -> None:
            start_recording(prefix, rank, size, path)
            gone = pathlib.Path(f"{path}.gone")
            if rank == 0:
                early = dist.irecv(torch.empty(1), 1)
            dist.barrier()
            while rank == 1 and not gone.exists():
                time.sleep(0.01)
            dist.destroy_process_group()
            if rank == 0:
                assert not early.is_success()
                gone.touch()

        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "end_")
            ranks.run(body)
            self.assertEqual(os.listdir(folder), [])

    def test_a_failure_that_nobody_waits_for(self) -> None:
        """Either an operation whose handle was dropped fails, or one fails when it is called."""

        def body(rank: int, size: int, path: str) -> None:
            start_recording(prefix, rank, size, path)
            if rank == 1:
                os._exit(9)
            if is_dropped:
                dist.irecv(torch.empty(1), 1)
            else:
                time.sleep(0.5)
                ranks.refusal(lambda: dist.all_reduce(torch.ones(1)))
            deadline = time.monotonic() + (60 if is_dropped else 0)
            while not os.path.exists(f"{prefix}0") and time.monotonic() < deadline:
                time.sleep(0.01)
            assert os.path.exists(f"{prefix}0"), os.listdir(folder)

        for is_dropped in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                prefix = os.path.join(folder, "death_")
                ranks.run(body, deaths=1)

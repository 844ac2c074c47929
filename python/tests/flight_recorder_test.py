# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What the ranks have done is recorded as PyTorch does it, and its tool compares the records."""

from __future__ import annotations

import datetime
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist


def read(prefix: str, rank: int) -> dict:
    return pickle.loads(pathlib.Path(f"{prefix}{rank}").read_bytes())


def start_recording(prefix: str, rank: int, size: int, path: str) -> None:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
    ranks.start(path, rank, size)
    dist.barrier()


class FlightRecorderTest(unittest.TestCase):
    def test_records(self) -> None:
        def body(rank: int, size: int) -> None:
            import stretto

            for _ in range(3):
                dist.all_reduce(torch.ones(4, 2))
            pair = dist.new_group([0, 1], group_desc="pair")
            dist.all_gather_into_tensor(torch.empty(6), torch.ones(3), group=pair)
            other = 1 - rank
            transfer = dist.isend if rank == 0 else dist.irecv
            transfer(torch.ones(5), other).wait()
            late = dist.irecv(torch.empty(1), 1) if rank == 0 else None
            assert stretto.dump_flight_record(prefix) == f"{prefix}{rank}"
            dist.barrier()
            if rank == 0:
                late.wait()
            else:
                dist.send(torch.ones(1), 0)

        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "flight_")
            ranks.with_group(body)
            first, second = read(prefix, 0), read(prefix, 1)
            names = [entry["profiling_name"] for entry in second["entries"]]
            self.assertIn("gloo:all_reduce", names)
            self.assertIn("gloo:recv 1<-0", names)
            for entry in second["entries"]:
                self.assertEqual(entry["state"], "completed", entry)
                self.assertGreaterEqual(entry["duration_ms"], 0)
            reduced = next(e for e in first["entries"] if e["profiling_name"] == names[0])
            self.assertEqual(reduced["input_sizes"], [[4, 2]])
            self.assertEqual(reduced["input_dtypes"], ["Float"])
            self.assertEqual(first["entries"][-1]["state"], "started")
            self.assertIn("pair", [group["desc"] for group in first["pg_config"].values()])
            tool = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder]
            told = os.path.join(folder, "told.db")
            run = subprocess.run([*tool, "-o", told], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            _, database = pickle.loads(pathlib.Path(told).read_bytes())
            matched = [each.collective_name for each in database.collectives if each.pass_check]
            self.assertEqual(matched.count("gloo:all_reduce"), names.count("gloo:all_reduce"))

    def test_time_is_up(self) -> None:
        def body(rank: int, size: int, path: str) -> None:
            start_recording(prefix, rank, size, path)
            if rank == 0:
                backend = dist.group.WORLD._get_backend(torch.device("cpu"))
                backend.set_timeout(datetime.timedelta(seconds=0.2))
                ranks.failure(lambda: dist.all_reduce(torch.ones(7)))
            else:
                time.sleep(1)

        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "timeout_")
            ranks.run(body)
            last = read(prefix, 0)["entries"][-1]
            self.assertEqual((last["state"], last["input_sizes"]), ("started", [[7]]))
            self.assertTrue(last["retired"])

    def test_a_failure_that_nobody_waits_for(self) -> None:
        """Of an operation whose handle was dropped, and of one that fails when it is called."""

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
                ranks.run(body, may_die=True)


if __name__ == "__main__":
    unittest.main()

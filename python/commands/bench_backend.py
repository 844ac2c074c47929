#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""stretto beside Gloo as a backend of torch.distributed, in one run.

The ranks, processes of this host, have a group of each backend and take turns with them, round by
round, so that both meet the same load of the machine. Three measurements:

  all_reduce   microseconds of an all_reduce of float32, blocking, and "async": two at a time, with
               async_op=True and wait(), by two; the median of all calls. For stretto also in memory
               that the ranks have mapped (stretto.empty), and of the same calls of the same group
               on the same tensors from C++; and "apart": of a call of PyTorch's own backend "fake",
               which does nothing, and then of one from C++, which together are what a call takes
               whose backend adds nothing, with caches and ranks as that finds them
  ddp          milliseconds of a training step of DistributedDataParallel; of one in which it does
               all but to communicate (on a group that leaves tensors as they are); of one in which
               ranks only meet and each copies its tensors once, as many bytes as an all_reduce has
               to read and to write (the floor); and without it (no_sync)
  fsdp         milliseconds of a training step of FSDP2 (fully_shard), and of one whose collectives
               are those of the backend "fake", which copies what a rank has itself

    python python/commands/bench_backend.py --ranks 2 --json results.json
    ./dev bench torch --measure all_reduce --page docs/measurements/pytorch_backend.md
    python python/commands/bench_backend.py --clock cpu    # Where others use the machine, too.
    python python/commands/bench_backend.py --measure ddp --models resnet18
    python python/commands/bench_backend.py --hosts 2 --rate 1e9 --ranks 1     # as root
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from typing import Callable

import torch
import torch.distributed as dist
from bench_models import models
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import peers  # noqa: E402

SIZES = "8,512,4096,65536,1048576,8388608,67108864"
CLOCKS = {"wall": time.CLOCK_MONOTONIC, "cpu": time.CLOCK_PROCESS_CPUTIME_ID}
clock = CLOCKS["wall"]
AT_A_TIME = 2  # Concurrent operations in the asynchronous measurement.
# From this size on, the noise between calls is larger than the time that is "ours".
NOISY_BYTES = 1 << 20
BEGIN, END = "<!-- made by ./dev bench torch -->", "<!-- end of what ./dev bench torch makes -->"

# Runs something `repeat` times, and returns the seconds of each run.
Variant = Callable[[int], "list[float]"]


def calls_of(run: Callable[[], None]) -> Variant:
    def timed(repeat: int) -> list[float]:
        times = []
        for _ in range(repeat):
            started = time.clock_gettime(clock)
            run()
            times.append(time.clock_gettime(clock) - started)
        return times

    return timed


def turns(variants: dict[str, Variant], rounds: int, repeat: int) -> dict[str, float]:
    """Returns the median seconds of a call of each variant, on the rank where it is longest."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, run in variants.items():
            dist.barrier()
            taken = run(repeat)
            if round_number > 0:  # The first round makes connections and plans.
                times[name] += taken
    medians = torch.tensor([statistics.median(each) for each in times.values()]).double()
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return dict(zip(times, medians.tolist()))


def fake_group() -> dist.ProcessGroup:
    import torch.testing._internal.distributed.fake_pg  # Registers "fake".

    return dist.new_group(backend="fake")


def blocking(tensor: torch.Tensor, group: dist.ProcessGroup) -> Variant:
    return calls_of(lambda: dist.all_reduce(tensor, group=group))


def asynchronous(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> Variant:
    def run() -> None:
        for work in [dist.all_reduce(t, group=group, async_op=True) for t in tensors]:
            work.wait()

    timed = calls_of(run)
    return lambda repeat: [each / len(tensors) for each in timed(repeat)]


def in_cpp(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> Variant:
    import stretto

    backend, module = stretto._backend(group), stretto._module()
    return lambda repeat: module.time_all_reduces(backend, tensors, repeat, clock)


def one_after_the_other(*parts: Variant) -> Variant:
    return lambda repeat: [sum(part(1)[0] for part in parts) for _ in range(repeat)]


def measure_all_reduce(ours: dist.ProcessGroup, options: argparse.Namespace) -> list[dict]:
    import stretto

    gloo, fake = dist.group.WORLD, fake_group()
    rows = []
    for size in options.bytes:
        plain = [torch.zeros(size // 4) for _ in range(AT_A_TIME)]
        mapped = stretto.empty(size // 4, group=ours).zero_()
        cpp, cpp_async = in_cpp(plain[:1], ours), in_cpp(plain, ours)
        medians = turns(
            {
                "c++": cpp,
                "stretto": blocking(plain[0], ours),
                "stretto, mapped": blocking(mapped, ours),
                "gloo": blocking(plain[0], gloo),
                "apart": one_after_the_other(blocking(plain[0], fake), cpp),
                "c++, async": cpp_async,
                "stretto, async": asynchronous(plain, ours),
                "gloo, async": asynchronous(plain, gloo),
                "apart, async": one_after_the_other(asynchronous(plain, fake), cpp_async),
            },
            options.rounds,
            max(10, min(200, (4 << 20) // size)),
        )
        rows.append({"bytes": size, **{k: v * 1e6 for k, v in medians.items()}})
    return rows


def step_of(wrapped: nn.Module, data: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        wrapped.zero_grad()
        wrapped(data).square().mean().backward()

    return step


def silent_step_of(wrapped: nn.Module, data: torch.Tensor) -> Callable[[], None]:
    step = step_of(wrapped, data)

    def silent_step() -> None:
        with wrapped.no_sync():
            step()

    return silent_step


class FutureWork(dist._Work):
    def __init__(self, future: torch.futures.Future) -> None:
        super().__init__()
        self.future_of_tensors = future

    def wait(self, timeout=None) -> bool:
        self.future_of_tensors.wait()
        return True

    def get_future(self) -> torch.futures.Future:
        return self.future_of_tensors


def ended(result: list) -> torch.futures.Future:
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(result)
    return future


class SilentGroup(dist.ProcessGroup):
    """The functions that DistributedDataParallel needs of a group. They leave all tensors
    unchanged."""

    def _end(self, tensors: list[torch.Tensor]) -> torch.futures.Future:
        return ended(tensors)

    def allreduce(self, tensors, options=None) -> FutureWork:
        return FutureWork(self._end(tensors))

    def broadcast(self, tensors, options=None) -> FutureWork:
        return FutureWork(self._end(tensors))

    def allgather(self, outputs, inputs, options=None) -> FutureWork:
        for output in outputs[0]:
            output.copy_(inputs[0])
        return FutureWork(ended(outputs))


class FloorGroup(SilentGroup):
    """A group in which ranks meet (in `group`), and then each copies its tensors."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        import stretto

        super().__init__(group.rank(), group.size())
        self.group = group
        self.note = stretto.empty(2, group=group).zero_()
        self.copies = torch.empty(0, dtype=torch.uint8)

    def _copy(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        for tensor in tensors:
            flat = tensor.view(-1).view(torch.uint8)
            if len(flat) > len(self.copies):
                self.copies = torch.empty_like(flat)
            self.copies[: len(flat)].copy_(flat)
        return tensors

    def _end(self, tensors: list[torch.Tensor]) -> torch.futures.Future:
        met = dist.all_reduce(self.note, group=self.group, async_op=True)
        return met.get_future().then(lambda _: self._copy(tensors))


def measure_ddp(ours: dist.ProcessGroup, options: argparse.Namespace) -> list[dict]:
    rows = []
    for name, (model, data) in models(options.models).items():

        def wrap(group: dist.ProcessGroup | None) -> nn.Module:
            return nn.parallel.DistributedDataParallel(
                copy.deepcopy(model), gradient_as_bucket_view=True, process_group=group
            )

        on_gloo = wrap(None)
        medians = turns(
            {
                "stretto": calls_of(step_of(wrap(ours), data)),
                "gloo": calls_of(step_of(on_gloo, data)),
                "alone": calls_of(step_of(wrap(SilentGroup(ours.rank(), ours.size())), data)),
                "floor": calls_of(step_of(wrap(FloorGroup(ours)), data)),
                "none": calls_of(silent_step_of(on_gloo, data)),
            },
            options.rounds,
            3,
        )
        megabytes = sum(p.numel() * 4 for p in model.parameters()) / 1e6
        rows.append({"model": name, "gradient_MB": megabytes,
                     **{k: v * 1e3 for k, v in medians.items()}})
    return rows


def measure_fsdp(ours: dist.ProcessGroup, options: argparse.Namespace) -> list[dict]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    groups = {"stretto": ours, "gloo": dist.group.WORLD, "alone": fake_group()}
    rows = []
    for name, (model, data) in models(options.models).items():
        steps = {}
        for backend, group in groups.items():
            sharded = copy.deepcopy(model)
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in sharded.children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            steps[backend] = calls_of(step_of(fully_shard(sharded, mesh=mesh), data))
        medians = turns(steps, options.rounds, 3)
        rows.append({"model": name, **{k: v * 1e3 for k, v in medians.items()}})
    return rows


MEASUREMENTS = {
    "all_reduce": ("all_reduce_us", measure_all_reduce),
    "ddp": ("ddp_step_ms", measure_ddp),
    "fsdp": ("fsdp_step_ms", measure_fsdp),
}


def measure(options: argparse.Namespace) -> dict:
    """Runs on every rank, with a default group of Gloo."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # Some versions have renamed broadcast_buffers.
    ours = dist.new_group(backend="stretto")
    results = {
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "clock": next(name for name, each in CLOCKS.items() if each is clock),
        "load_before": os.getloadavg()[0],
    }
    for name in options.measure.split(","):
        key, run = MEASUREMENTS[name]
        results[key] = run(ours, options)
    dist.destroy_process_group()
    return results


def part_of(row: dict, zero: str, variant: str = "stretto") -> float:
    """Returns the time that `variant` adds to the step `zero`, as a fraction of what Gloo adds to
    it; NaN if Gloo seems to add nothing, as on a busy machine."""
    added = row["gloo"] - row[zero]
    return (row[variant] - row[zero]) / added if added > 0 else math.nan


TITLES = ["C++", "stretto", "over C++", "ours", "Gloo", "ratio"]
KINDS = {"": "blocking", ", async": f"{AT_A_TIME} at a time"}


def columns_of(row: dict, kind: str) -> list[str]:
    cpp, took, apart, gloo = (row[each + kind] for each in ("c++", "stretto", "apart", "gloo"))
    times = (cpp, took, took - cpp, took - apart, gloo)
    return [*(f"{each:.1f}" for each in times), f"{gloo / took:.2f}"]


def show_all_reduce(rows: list[dict]) -> None:
    for kind, title in KINDS.items():
        print(f"{'all_reduce us':>14}" + "".join(f"{each:>11}" for each in TITLES)
              + f"{'' if kind else 'mapped':>11}  {title}")
        for row in rows:
            cells = [row["bytes"], *columns_of(row, kind)]
            print(f"{cells[0]:>14}" + "".join(f"{cell:>11}" for cell in cells[1:])
                  + f"{'' if kind else round(row['stretto, mapped'], 1):>11}")
    print("over C++: what a call takes longer than from C++; ours: than a call of a backend that "
          "does nothing and one from C++,\none after the other")


def page_of(results: dict, command: str) -> str:
    """Returns the all_reduce tables of docs/measurements/pytorch_backend.md."""
    parts = [f"`{command}`, commit {peers.commit_of()}, {peers.today()}: {results['ranks']} ranks, "
             f"{results['cores']} cores, load {results['load_before']:.1f} when it began, "
             f"torch {results['torch']}; microseconds."]
    for kind, title in KINDS.items():
        head = [f"bytes, {title}", *TITLES]
        rows = [[f"{row['bytes']}", *columns_of(row, kind)] for row in results["all_reduce_us"]]
        for row in rows:
            if int(row[0]) >= NOISY_BYTES:
                row[head.index("ours")] = ""
        parts.append(peers.markdown(head, rows))
    return "\n\n".join(parts)


def show_ddp(rows: list[dict]) -> None:
    print(f"{'ddp step':>12} {'stretto ms':>12} {'gloo ms':>12} {'floor ms':>12} "
          f"{'ddp alone ms':>12} {'none ms':>12} {'exposed':>8} {'floor':>8} {'with ddp':>8}")
    for row in rows:
        print(f"{row['model']:>12} {row['stretto']:>12.2f} {row['gloo']:>12.2f} "
              f"{row['floor']:>12.2f} {row['alone']:>12.2f} {row['none']:>12.2f} "
              f"{part_of(row, 'alone'):>8.2f} {part_of(row, 'alone', 'floor'):>8.2f} "
              f"{part_of(row, 'none'):>8.2f}")
    print("exposed: what communication adds to a step with stretto by what it adds with Gloo; "
          "floor: the same of ranks that only\nmeet, and copy their gradients once; with ddp: the "
          "same of all that DistributedDataParallel adds")


def show_fsdp(rows: list[dict]) -> None:
    print(f"{'fsdp step':>12} {'stretto ms':>12} {'gloo ms':>12} {'alone ms':>12} {'ratio':>8} "
          f"{'exposed':>8}")
    for row in rows:
        print(f"{row['model']:>12} {row['stretto']:>12.2f} {row['gloo']:>12.2f} "
              f"{row['alone']:>12.2f} {row['gloo'] / row['stretto']:>8.2f} "
              f"{part_of(row, 'alone'):>8.2f}")


def show(results: dict) -> None:
    print(f"{results['ranks']} ranks, {results['cores']} cores, load {results['load_before']:.1f}, "
          f"clock: {results['clock']}; ratio: Gloo's time by stretto's")
    for (key, _), show_rows in zip(MEASUREMENTS.values(), (show_all_reduce, show_ddp, show_fsdp)):
        if key in results:
            show_rows(results[key])


def measure_here(options: argparse.Namespace) -> dict:
    """Returns the results of rank 0; the other ranks are processes forked from this one."""

    def be_rank(rank: int) -> dict:
        place = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": options.ranks}
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5), **place)
        return measure(options)

    def be_child(rank: int) -> None:
        """Runs a rank and ends this process in any case, because the folder belongs to the
        parent."""
        status = 1
        try:
            be_rank(rank)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(1, options.ranks):
            child = os.fork()
            if child == 0:
                be_child(rank)
            children.append(child)
        results = be_rank(0)
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    if failed:
        sys.exit(f"{len(failed)} ranks have failed")
    return results


def measure_hosts(options: argparse.Namespace) -> dict:
    """Measures with a network namespace as each host, and a torchrun in each. Needs root and
    iproute2."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
    import namespaces

    hosts = options.hosts
    network = namespaces.Network(f"torch{os.getpid() % 100000}", hosts)
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder) / "results.json"
        try:
            network.make()
            network.shape(options.rate)
            launchers = [
                subprocess.Popen(
                    [*network.enter(host), sys.executable, "-m", "torch.distributed.run"]
                    + [f"--nnodes={hosts}", f"--node-rank={host}"]
                    + [f"--nproc-per-node={options.ranks}"]
                    + [f"--master-addr={network.address(0)}", "--master-port=29500", __file__]
                    + ["--rounds", str(options.rounds), "--json", str(answer)]
                    + ["--clock", options.clock, "--measure", options.measure]
                    + ["--models", options.models]
                    + ["--bytes", ",".join(str(size) for size in options.bytes)],
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "GLOO_SOCKET_IFNAME": network.device},
                )
                for host in range(hosts)
            ]
            if any([launcher.wait() for launcher in launchers]):
                sys.exit("a launcher has failed")
        finally:
            network.remove()
        return {**json.loads(answer.read_text()), "hosts": hosts, "bits_per_second": options.rate}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--hosts", type=int, default=1, help="network namespaces of this machine")
    parser.add_argument("--rate", type=float, default=1e9, help="bit/s between hosts")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of all threads")
    parser.add_argument("--measure", default=",".join(MEASUREMENTS), help="some of the default")
    parser.add_argument("--bytes", default=SIZES, help="of an all_reduce, 8 and more")
    parser.add_argument("--models", default="mlp,resnet18,transformer", help="the same")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path,
                        help="puts the tables of all_reduce there, as in "
                             "docs/measurements/pytorch_backend.md")
    arguments = parser.parse_args()
    arguments.bytes = [int(size) for size in arguments.bytes.split(",")]
    global clock
    clock = CLOCKS[arguments.clock]
    if "TORCHELASTIC_RUN_ID" in os.environ:  # measure_hosts() has started this process.
        dist.init_process_group("gloo")
        results = measure(arguments)
        if os.environ["RANK"] != "0":
            return
    elif arguments.hosts > 1:
        results = measure_hosts(arguments)
    else:
        results = measure_here(arguments)
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.page:
        chosen = peers.without_files(sys.argv[1:])
        text = page_of(results, " ".join(["./dev bench torch", *chosen]))
        peers.put_into(arguments.page, BEGIN, END, text)


if __name__ == "__main__":
    main()

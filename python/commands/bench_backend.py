#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""stretto beside Gloo as a backend of torch.distributed, in one run.

The ranks, processes of this host, have a group of each backend and take turns with them, round by
round, so that both meet the same load of the machine. Three measurements:

  all_reduce   microseconds of an all_reduce of float32, blocking and with async_op=True and
               wait(), the median of all calls; for stretto also in memory that the ranks have
               mapped (stretto.empty); of PyTorch's own backend "fake", which does nothing: what
               the way from Python to a backend takes; and, on one host, of `stretto bench`, whose
               ranks call the library from C++ while these wait
  ddp          milliseconds of a training step of DistributedDataParallel; of one in which it does
               all but to communicate (on a group that leaves tensors as they are); of one in which
               ranks only meet and each copies its tensors once, as many bytes as an all_reduce has
               to read and to write (the floor); and without it (no_sync)
  fsdp         milliseconds of a training step of FSDP2 (fully_shard)

    python python/commands/bench_backend.py --ranks 2 --json results.json
    python python/commands/bench_backend.py --clock cpu    # Where others use the machine, too.
    python python/commands/bench_backend.py --measure ddp --models resnet18
    python python/commands/bench_backend.py --hosts 2 --rate 1e9 --ranks 1     # as root
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn

SIZES = "8,512,4096,65536,1048576,8388608,67108864"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def is_on_a_host() -> bool:
    """Of measure_hosts()."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def turns(variants: dict[str, Callable[[], None]], rounds: int, repeat: int) -> dict[str, float]:
    """The median time of a call of each variant in seconds, on the rank where it is longest."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, run in variants.items():
            dist.barrier()
            for _ in range(repeat):
                started = clock()
                run()
                if round_number > 0:  # The first makes connections and plans.
                    times[name].append(clock() - started)
    medians = torch.tensor([statistics.median(each) for each in times.values()]).double()
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return dict(zip(times, medians.tolist()))


def microseconds_in_cpp(ranks: int, size: int) -> float:
    program = [sys.executable, "-m", "stretto", "bench", "all_reduce", f"--ranks={ranks}"]
    chosen = [f"--bytes={size}", "--buffers=private", "--in-place", "--no-pin", "--no-check"]
    done = subprocess.run([*program, *chosen, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["p50_us"]


def measure_all_reduce(ours: dist.ProcessGroup, options: argparse.Namespace) -> list[dict]:
    import stretto
    import torch.testing._internal.distributed.fake_pg  # Makes "fake" known.

    fake = dist.new_group(backend="fake")
    rows = []
    for size in options.bytes:
        plain = torch.zeros(size // 4)
        mapped = stretto.empty(size // 4, group=ours).zero_()
        medians = turns(
            {
                "stretto": lambda: dist.all_reduce(plain, group=ours),
                "stretto, mapped": lambda: dist.all_reduce(mapped, group=ours),
                "stretto, async": lambda: dist.all_reduce(plain, group=ours, async_op=True).wait(),
                "gloo": lambda: dist.all_reduce(plain),
                "gloo, async": lambda: dist.all_reduce(plain, async_op=True).wait(),
                "none": lambda: dist.all_reduce(plain, group=fake),
            },
            options.rounds,
            max(1, min(200, (4 << 20) // size)),
        )
        rows.append({"bytes": size, **{k: v * 1e6 for k, v in medians.items()}})
        if dist.get_rank() == 0 and not is_on_a_host():
            rows[-1]["c++"] = microseconds_in_cpp(dist.get_world_size(), size)
    return rows


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
        self.embedding = nn.Embedding(1000, 128)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(tokens))


class Block(nn.Module):
    """Of a ResNet: two convolutions, and what goes round them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.around = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (self.through(images) + self.around(images)).relu()


def resnet18() -> nn.Module:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    for inner, outer, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Block(inner, outer, stride), Block(outer, outer, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def models(wanted: str) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                        nn.Linear(1024, 512))
    known = {
        "mlp": (mlp, torch.randn(16, 512)),
        "resnet18": (resnet18(), torch.randn(2, 3, 32, 32)),
        "transformer": (Transformer(), torch.randint(0, 1000, (2, 32))),
    }
    return {name: known[name] for name in wanted.split(",")}


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
    """What DistributedDataParallel needs of a group, leaving all tensors as they are."""

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
    """In which ranks meet, in `group`, and then copy their tensors."""

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
                "stretto": step_of(wrap(ours), data),
                "gloo": step_of(on_gloo, data),
                "alone": step_of(wrap(SilentGroup(ours.rank(), ours.size())), data),
                "floor": step_of(wrap(FloorGroup(ours)), data),
                "none": silent_step_of(on_gloo, data),
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

    rows = []
    for name, (model, data) in models(options.models).items():
        steps = {}
        for backend, group in [("stretto", ours), ("gloo", dist.group.WORLD)]:
            sharded = copy.deepcopy(model)
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in sharded.children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            steps[backend] = step_of(fully_shard(sharded, mesh=mesh), data)
        medians = turns(steps, options.rounds, 3)
        rows.append({"model": name, **{k: v * 1e3 for k, v in medians.items()}})
    return rows


MEASUREMENTS = {
    "all_reduce": ("all_reduce_us", measure_all_reduce),
    "ddp": ("ddp_step_ms", measure_ddp),
    "fsdp": ("fsdp_step_ms", measure_fsdp),
}


def measure(options: argparse.Namespace) -> dict:
    """On every rank, where the default group is one of Gloo's."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has a new name in some.
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
    """Of what Gloo adds to a step that takes `zero`, the part that `variant` adds."""
    return (row[variant] - row[zero]) / max(row["gloo"] - row[zero], 1e-9)


def show_all_reduce(rows: list[dict]) -> None:
    print(f"{'all_reduce':>12} {'stretto us':>12} {'mapped us':>12} {'async us':>12} "
          f"{'gloo us':>12} {'async us':>12} {'none us':>8} {'C++ us':>10} {'ratio':>8}")
    for row in rows:
        print(f"{row['bytes']:>12} {row['stretto']:>12.1f} {row['stretto, mapped']:>12.1f} "
              f"{row['stretto, async']:>12.1f} {row['gloo']:>12.1f} {row['gloo, async']:>12.1f} "
              f"{row['none']:>8.1f} {row.get('c++', float('nan')):>10.1f} "
              f"{row['gloo'] / row['stretto']:>8.2f}")


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
    print(f"{'fsdp step':>12} {'stretto ms':>12} {'gloo ms':>12} {'ratio':>8}")
    for row in rows:
        print(f"{row['model']:>12} {row['stretto']:>12.2f} {row['gloo']:>12.2f} "
              f"{row['gloo'] / row['stretto']:>8.2f}")


def show(results: dict) -> None:
    print(f"{results['ranks']} ranks, {results['cores']} cores, load {results['load_before']:.1f}, "
          f"clock: {results['clock']}; ratio: Gloo's time by stretto's")
    for (key, _), show_rows in zip(MEASUREMENTS.values(), (show_all_reduce, show_ddp, show_fsdp)):
        if key in results:
            show_rows(results[key])


def measure_here(options: argparse.Namespace) -> dict:
    """Results of rank 0; the others are processes forked from this one."""
    ranks = options.ranks
    with tempfile.TemporaryDirectory() as folder:
        rank = next((r for r in range(1, ranks) if os.fork() == 0), 0)
        place = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": ranks}
        dist.init_process_group("gloo", **place)
        results = measure(options)
        if rank != 0:
            os._exit(0)
    failed = [r for r in range(1, ranks) if os.wait()[1] != 0]
    if failed:
        sys.exit(f"{len(failed)} ranks have failed")
    return results


def measure_hosts(options: argparse.Namespace) -> dict:
    """Each host is a network namespace with a torchrun of its own. Needs root and iproute2."""
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
    arguments = parser.parse_args()
    arguments.bytes = [int(size) for size in arguments.bytes.split(",")]
    global clock
    clock = CLOCKS[arguments.clock]
    if is_on_a_host():
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


if __name__ == "__main__":
    main()

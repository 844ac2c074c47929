#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""How fast UCX or an MPI moves a message for stretto, against the same alone, in turns.

Between two network namespaces with a link of a given rate. Needs root and iproute2, for UCX
ucx_perftest (ucx-utils), for an MPI Debian's Open MPI with its compiler.

examples:
  python3 bench/engines.py --mib 16 --rounds 5
  python3 bench/engines.py --engine mpi
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import conversation
import hosts
import hosts_systems

namespaces = hosts.namespaces
ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME_LIMIT_SECONDS = 120
PACKET_BYTES = 256 << 10  # docs/engines.md


def of_bench(output):
    """Returns the seconds of one direction, from the output of `stretto bench send_recv --json`."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return lines[0]["p50_us"] / 1e6


def of_perftest(output):
    """Returns the seconds of one direction, from ucx_perftest's output: the median, as for
    stretto."""
    final = [line for line in output.splitlines() if line.startswith("Final:")]
    return float(final[-1].split()[2]) / 1e6


class Ucx:
    title = "UCX"

    def __init__(self, network, program, count, folder):
        self.network, self.program, self.count = network, program, count
        # These hosts share one memory, which UCX would use instead of their network.
        os.environ.update(UCX_TLS="tcp", UCX_NET_DEVICES=network.device)
        self.environment = hosts_systems.environment_of(network, folder) | {
            "STRETTO_TRANSPORT": "ucx", "STRETTO_SIZE": "2"}

    def alone(self):
        on_hosts = [[*self.network.enter(host), *hosts_systems.on_core_of(host)]
                    for host in (0, 1)]
        ask = f"ucx_perftest {self.network.address(0)} -t tag_lat -s {self.count} -n 8 -w 1"
        with subprocess.Popen([*on_hosts[0], "ucx_perftest"], stdout=subprocess.DEVNULL) as server:
            try:
                client = subprocess.run([*on_hosts[1], "sh", "-c", f"sleep 1; {ask}"], check=True,
                                        capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS)
                server.wait(TIME_LIMIT_SECONDS)
            finally:
                server.kill()
        return of_perftest(client.stdout)

    def for_stretto(self):
        environments = [os.environ | self.environment | {"STRETTO_RANK": rank} for rank in "01"]
        outputs = hosts.outputs_of_each([bench_words(self.program, self.count)] * 2, environments,
                                        self.network, [0, 1], TIME_LIMIT_SECONDS)
        return of_bench(outputs[0])


class Mpi:
    title = "Open MPI"

    def __init__(self, network, program, count, folder):
        self.program, self.count = program, count
        self.driver = folder / "mpi_message_driver"
        subprocess.run(["mpicxx.openmpi", "-O2", "-o", str(self.driver),
                        str(ROOT / "bench/drivers/mpi_message_driver.cc")], check=True)
        self.before, self.options = hosts_systems.mpirun_between(network, [1, 1], folder / "agent")
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                          OMPI_MCA_pml="ob1", OMPI_MCA_btl="vader,tcp,self",
                          STRETTO_TRANSPORT="mpi", STRETTO_JOB_KEY="7" * 64,
                          STRETTO_RENDEZVOUS=f"tcp://{network.address(0)}:29600")

    def _run(self, *words):
        command = [*self.before, "mpirun.openmpi", "-n", "2", *self.options]
        for name in ("TRANSPORT", "JOB_KEY", "RENDEZVOUS"):
            command += ["-x", f"STRETTO_{name}"]
        return subprocess.run([*command, *words], capture_output=True, text=True, check=True,
                              timeout=TIME_LIMIT_SECONDS).stdout

    def alone(self):
        """Measures one message, and pieces the size of stretto's packets; returns the faster
        result."""
        return min(float(self._run(str(self.driver), str(self.count), str(piece)))
                   for piece in (self.count, PACKET_BYTES))

    def for_stretto(self):
        return of_bench(self._run(*bench_words(self.program, self.count)))


ENGINES = {"ucx": Ucx, "mpi": Mpi}


def bench_words(program, count):
    return [program, "bench", "send_recv", "--json", "--buffers", "private", "--bytes", str(count)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "release", metavar="FOLDER",
                        help="build folder of stretto")
    parser.add_argument("--engine", choices=ENGINES, default="ucx", help="default: ucx")
    parser.add_argument("--mib", type=int, default=64, help="of a message")
    parser.add_argument("--gbit", type=float, default=1, help="per second, of the link")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def measure(arguments):
    mib, gbit = arguments.mib, arguments.gbit
    network = namespaces.Network(f"engines{os.getpid()}")
    program = str(pathlib.Path(arguments.build).resolve() / "bin" / "stretto")
    with network.up(gbit * 1e9), tempfile.TemporaryDirectory(prefix="engines_") as folder:
        engine = ENGINES[arguments.engine](network, program, mib << 20, pathlib.Path(folder))
        ratios = []
        for _ in range(arguments.rounds):
            alone = engine.alone()
            ours = engine.for_stretto()
            ratios.append(ours / alone)
            print(f"{mib} MiB one way at {gbit:g} Gbit/s: {engine.title} {alone * 1e3:.1f} ms, "
                  f"stretto by {engine.title} {ours * 1e3:.1f} ms, {ratios[-1]:.3f} x", flush=True)
        print(f"median {statistics.median(ratios):.3f} x")


def main():
    arguments = parse_arguments()
    try:
        measure(arguments)
    except (namespaces.NetworkError, conversation.SystemFailed, OSError) as error:
        sys.exit(f"bench/engines.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"bench/engines.py: {error.cmd} has failed:\n{error.stderr}")


if __name__ == "__main__":
    main()

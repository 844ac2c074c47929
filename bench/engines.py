#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""How fast UCX moves a message for stretto, against UCX alone (ucx_perftest), in turns.

Between two network namespaces with a link of a given rate. Needs root, iproute2 and ucx-utils.

example: python3 bench/engines.py --mib 16 --rounds 5
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
import namespaces  # noqa: E402  pylint: disable=wrong-import-position

TIME_LIMIT_SECONDS = 120


def pair(network, far, near):
    """Output of `near`, which runs on host 1 while `far` runs on host 0."""
    with subprocess.Popen([*network.enter(0), *far], stdout=subprocess.PIPE, text=True) as server:
        try:
            client = subprocess.run([*network.enter(1), *near], capture_output=True, text=True,
                                    check=True, timeout=TIME_LIMIT_SECONDS)
            return server.communicate(timeout=TIME_LIMIT_SECONDS)[0] + client.stdout
        finally:
            server.kill()


def of_stretto(network, program, count):
    key = subprocess.run([program, "run", "--print-job-key"], capture_output=True, text=True,
                         check=True).stdout.strip()
    os.environ["STRETTO_JOB_KEY"] = key
    hosts = f"{network.address(0)},{network.address(1)}"
    commands = [[program, "run", "-n", "1", "--no-prefix", "--hosts", hosts, "--host-index",
                 str(index), "--transport", "ucx", "--", program, "bench", "send_recv", "--json",
                 "--buffers", "private", "--bytes", str(count)] for index in (0, 1)]
    lines = [json.loads(line) for line in pair(network, *commands).splitlines()
             if line.startswith("{")]
    return lines[0]["p50_us"] / 1e6


def of_ucx(network, count):
    ask = f"ucx_perftest {network.address(0)} -t tag_lat -s {count} -n 8 -w 1"
    near = ["sh", "-c", f"sleep 1; {ask}"]
    final = [line for line in pair(network, ["ucx_perftest"], near).splitlines()
             if line.startswith("Final:")]
    return float(final[-1].split()[4]) / 1e6


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "release", metavar="FOLDER",
                        help="build folder of stretto")
    parser.add_argument("--mib", type=int, default=64, help="of a message")
    parser.add_argument("--gbit", type=float, default=1, help="per second, of the link")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    mib, gbit = arguments.mib, arguments.gbit
    network = namespaces.Network(f"engines{os.getpid()}")
    program = str(pathlib.Path(arguments.build).resolve() / "bin" / "stretto")
    count = mib << 20
    # These hosts have one memory, by which UCX would go round their network.
    os.environ.update(UCX_TLS="tcp", UCX_NET_DEVICES="eth")
    with network.up(gbit * 1e9):
        ratios = []
        for _ in range(arguments.rounds):
            alone = of_ucx(network, count)
            ours = of_stretto(network, program, count)
            ratios.append(ours / alone)
            print(f"{mib} MiB one way at {gbit} Gbit/s: UCX {alone * 1e3:.1f} ms, "
                  f"stretto by UCX {ours * 1e3:.1f} ms, {ratios[-1]:.3f} x", flush=True)
        print(f"median {statistics.median(ratios):.3f} x")


if __name__ == "__main__":
    main()

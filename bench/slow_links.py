#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Compressed gradients on slow links: stretto's codecs, PyTorch's DDP with its hooks over Gloo, and
the same DDP with stretto.hooks over stretto, in turns.

Hosts (network namespaces of this machine, each with one of its cores) on links of a given rate;
each system's ranks reduce the same number of bytes of gradients. Needs root and iproute2, and torch
in the Python that is named. Steps of both DDPs include forward and backward of a few small layers;
"alone" is what these take without communication, and stretto's steps have none. The last column
leaves it out: how many times as long communication takes with stretto's dense gradients.

examples:
  python3 bench/slow_links.py
  python3 bench/slow_links.py --rates 100M --ranks 4 --rounds 3 --json lines.jsonl
  python3 bench/slow_links.py --rounds 2 --document docs/measurements/compression.md
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import sys
import tempfile

import conversation
import hosts
import hosts_systems
import peers

namespaces = hosts.namespaces
ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN = "<!-- begin of bench/slow_links.py -->"
END = "<!-- end of bench/slow_links.py -->"
VENV = ROOT / "build" / "venv" / "bin" / "python"
HOOKS = {"gloo": "none,fp16,PowerSGD 1,PowerSGD 2,PowerSGD 4",
         "stretto": "none,f16,top_k 0.01,top_k 0.01 bf16,power_sgd 1,power_sgd 2,power_sgd 4"}
TIMEOUT_SECONDS = 570


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="bench/slow_links.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=lambda text: [hosts.rate_of(word)
                                                      for word in text.split(",")],
                        default=[1e8, 1e9], metavar="LIST", help="bit/s (default: 100M,1G)")
    parser.add_argument("--megabytes", type=int, default=20, help="of gradients, in steps of 4")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of each of DDP's hooks in a round")
    parser.add_argument("--python", default=str(VENV) if VENV.exists() else sys.executable,
                        help="one that has torch (default: the one that ./dev has set up)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="an object a line")
    parser.add_argument("--document", type=pathlib.Path, metavar="FILE",
                        help="put the tables into this page, between its comments")
    peers.add_build(parser)
    arguments = parser.parse_args(words)
    if arguments.megabytes < 4 or arguments.megabytes % 4:
        parser.error("--megabytes: layers have 4 MiB each")
    arguments.placement = [host for host in range(arguments.hosts) for _ in range(arguments.ranks)]
    return arguments


def run_stretto(arguments, network, cache):
    command = [str(arguments.build.resolve() / "bin" / "stretto"), "bench", "--compression",
               "--json", "--bytes", f"{arguments.megabytes}M"]
    outputs = hosts.outputs_of(command, network, arguments.placement, cache,
                               seconds=TIMEOUT_SECONDS)
    return [json.loads(line) | {"system": "stretto"} for line in outputs[0].splitlines()]


def run_ddp(arguments, network, backend, environment):
    driver = str(ROOT / "bench" / "drivers" / "ddp_hooks.py")
    common = dict(os.environ) | environment
    commands = [[arguments.python, driver, "--store", f"{network.address(0)}:29700", "--rank",
                 str(rank), "--ranks", str(len(arguments.placement)), "--layers",
                 str(arguments.megabytes // 4), "--steps", str(arguments.steps), "--backend",
                 backend, "--hooks", HOOKS[backend]]
                for rank in range(len(arguments.placement))]
    outputs = hosts.outputs_of_each(commands, [common] * len(commands), network,
                                    arguments.placement, TIMEOUT_SECONDS)
    return [json.loads(line) for line in outputs[0].splitlines()]


def measure(arguments, rate):
    network = namespaces.Network(f"slow{os.getpid()}", arguments.hosts)
    with tempfile.TemporaryDirectory(prefix="stretto_slow_links_") as cache, network.up(rate):
        for number in range(arguments.rounds):
            print(f"{rate / 1e6:.0f} Mbit/s: round {number + 1} of {arguments.rounds}",
                  file=sys.stderr)
            over_stretto = hosts_systems.environment_of(network, cache) | {
                "PYTHONPATH": str(arguments.build.resolve() / "python")}
            for line in (*run_stretto(arguments, network, cache),
                         *run_ddp(arguments, network, "gloo",
                                  {"GLOO_SOCKET_IFNAME": network.device}),
                         *run_ddp(arguments, network, "stretto", over_stretto)):
                yield line | {"rate": rate, "round": number}


def table(lines, megabytes):
    """Returns the medians of all rounds for each system, codec and rate."""
    rates = list(dict.fromkeys(line["rate"] for line in lines))

    def median(codec, rate, key):
        found = [line[key] for line in lines
                 if (line["system"], line["codec"], line["rate"]) == (*codec, rate) and key in line]
        return statistics.median(found) if found else None

    head = [f"{megabytes} MB", "codec"]
    for rate in rates:
        head += [f"step at {rate / 1e6:.0f} Mbit/s, ms", "alone, ms", "dense f32 / (step - alone)"]
    rows = []
    for codec in dict.fromkeys((line["system"], line["codec"]) for line in lines):
        rows.append(list(codec))
        for rate in rates:
            dense = median(("stretto", "as they are"), rate, "step_s")
            step, alone = median(codec, rate, "step_s"), median(codec, rate, "alone_s")
            rows[-1] += [f"{1e3 * step:.1f}", f"{1e3 * alone:.1f}" if alone else "",
                         f"{dense / (step - (alone or 0)):.2f}"]
    return peers.markdown(head, rows)


def section(text, words, arguments, load):
    """Returns the text of the document's section, which is between two comments."""
    command = shlex.join(["python3", "bench/slow_links.py", *peers.without_files(words)])
    return (f"`{command}`, commit {peers.commit_of()}, while others used {load:.1f} of the cores: "
            f"medians of {arguments.rounds} rounds.\n\n{text}")


def main(words):
    arguments = parse_arguments(words)
    load = peers.cores_in_use()
    lines = []
    try:
        for rate in arguments.rates:
            for line in measure(arguments, rate):
                lines.append(line)
    except (namespaces.NetworkError, conversation.SystemFailed) as error:
        print(f"bench/slow_links.py: {error}", file=sys.stderr)
        return 2
    finally:
        peers.write_lines(arguments.json, lines)
    text = table(lines, arguments.megabytes)
    print(text)
    if arguments.document:
        peers.put_into(arguments.document, BEGIN, END, section(text, words, arguments, load))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

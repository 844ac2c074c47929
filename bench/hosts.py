#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Collectives between hosts: stretto, Gloo and Open MPI in turns, against a reference for the wire.

Hosts are network namespaces of this machine, each with one of its cores, joined by virtual cables
of a given rate. Needs root and iproute2; removes all that it has made. Peers are used where
./dev bench peers has installed them.

examples:
  ./dev bench hosts                                      # 2 hosts of 2 ranks, 1 Gbit/s
  ./dev bench hosts --shapes 4x1,3+1,rr2x2 --bytes 8,64K,16M
  ./dev bench hosts --operations all --rate 100M --systems stretto
  ./dev bench hosts --delay 5 --loss 10 --rate 100M --bytes 8,64K   # 5 ms each way, 1 % lost
  ./dev bench hosts --training                 # how busy a training step keeps the wire
  ./dev bench hosts --plots                    # by size, operations at a time, number of ranks
  ./dev bench hosts --joining                  # 64 processes on 4 hosts
  ./dev bench hosts --mesh                     # what connections to all ranks cost
  ./dev bench hosts --page docs/measurements/hosts.md  # all parts of the page, in half an hour
  ./dev bench hosts --page docs/measurements/hosts.md --parts gigabit,joining
"""

import argparse
import contextlib
import copy
import dataclasses
import itertools
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types

import conversation
import hosts_floor
import hosts_joining
import hosts_page
import hosts_plots
import hosts_report
import hosts_systems
import peers
import systems

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
import namespaces  # noqa: E402  pylint: disable=wrong-import-position

ALGORITHMS = ("two_level_eager", "two_level_mapped", "two_level", "direct", "ring",
              "recursive_doubling", "recursive_halving")
PLAIN_BYTES = 16 << 20
# The arguments of bench/drivers/wire_driver.cc.
TRAINING = types.SimpleNamespace(steps=10, total=20 << 20, bucket=1 << 20, backward_ms=40)
LEAST_BUSY = 0.9  # The fraction of a training step in which the wire must be busy.
START_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of one kind of measurement."""

    text: str
    lines: list  # One object per line of JSON.
    versions: dict  # The version of each system.
    bad: list = dataclasses.field(default_factory=list)  # Sentences on failures.


def rate_of(word):
    """Parses "1G" or "100M" as bits per second, by powers of 1000."""
    factor = {"K": 1e3, "M": 1e6, "G": 1e9}.get(word[-1:].upper())
    try:
        return float(word[:-1]) * factor if factor else float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{word}' is no rate such as 1G or 100M") from None


def shapes_of(text):
    names = text.split(",")
    for name in names:
        try:
            if max(hosts_systems.placement_of(name)) < 1:
                raise ValueError
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"'{name}' is no shape of several hosts such as 2x2, 3+1 or rr2x2") from None
    return names


def make_parser():
    parser = argparse.ArgumentParser(
        prog="./dev bench hosts", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shapes_of, default=["2x2"], metavar="LIST",
                        help="hosts x ranks (4x1), ranks of each host (3+1), or rr2x2: placed "
                        "round-robin (default: 2x2)")
    parser.add_argument("--rate", type=rate_of, default=1e9, help="bit/s of a port (default: 1G)")
    parser.add_argument("--delay", type=float, default=0, metavar="MS",
                        help="one way, between two hosts; a process passes packets on then")
    parser.add_argument("--loss", type=int, default=0, metavar="PERMILLE", help="of packets")
    parser.add_argument("--connection-rate", type=rate_of, default=0, metavar="RATE",
                        help="bit/s of each connection, as clouds limit it")
    parser.add_argument("--congestion-control", default="cubic", metavar="NAME",
                        help="of every connection, such as bbr (default: cubic, as Linux's)")
    parser.add_argument("--cards", type=int, default=1, metavar="COUNT", help="of each host, in as "
                        "many networks, each of that rate (default: 1)")
    parser.add_argument("--streams", type=int, default=1, metavar="COUNT",
                        help="connections of stretto between two ranks (default: 1)")
    parser.add_argument("--encryption", choices=["off", "tls"], default="off",
                        help="tls: of what stretto sends between hosts; its collectives are "
                        "measured without, too (default: off)")
    parser.add_argument("--operations", default=["all_reduce"], metavar="LIST",
                        type=lambda text: systems.OPERATIONS if text == "all" else
                        peers.list_of(systems.OPERATIONS)(text), help="or all")
    parser.add_argument("--bytes", type=peers.sizes_of, metavar="LIST",
                        default="8,4K,64K,1M,4M,16M")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of samples for each line")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS",
                        help="after which a line counts as hung (default: 60)")
    parser.add_argument("--systems", type=peers.list_of(hosts_systems.NAMES),
                        default=[name for name in hosts_systems.NAMES if name != "stretto_tls"],
                        metavar="LIST", help=f"of {', '.join(hosts_systems.NAMES)}")
    parser.add_argument("--algorithms", type=peers.list_of(ALGORITHMS), default=list(ALGORITHMS),
                        metavar="LIST", help="of stretto's all_reduce, measured by name as well")
    parser.add_argument("--no-algorithms", dest="algorithms", action="store_const", const=[],
                        help="measure what the library chooses, and nothing else")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="an object a line")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="instead: measures what "
                        "the page shows, part by part, and replaces it there; a part's own options "
                        "win over those given here")
    parser.add_argument("--parts", type=peers.list_of(hosts_page.PARTS), metavar="LIST",
                        default=list(hosts_page.PARTS),
                        help=f"of the page: {', '.join(hosts_page.PARTS)} (default: all)")
    parser.add_argument("--training", action="store_true", help="instead: how busy steps of "
                        f"training, of {TRAINING.total >> 20} MiB of gradients, keep the wire")
    parser.add_argument("--plots", action="store_true", help="instead: the speed of an all_reduce "
                        "by size, by operations at a time and by number of ranks")
    parser.add_argument("--joining", type=int, nargs="?", const=64, default=0, metavar="RANKS",
                        help="instead: how long so many processes on 4 hosts take to join, and the "
                        "memory and descriptors of each (default: 64)")
    parser.add_argument("--mesh", action="store_true", help="instead: the memory and descriptors "
                        "that a rank needs for each rank of another host, and of 1000")
    peers.add_places(parser)
    return parser


def parse_arguments(words, given=None):
    """`given`: arguments that apply unless `words` set them."""
    parser = make_parser()
    arguments = parser.parse_args(words, copy.copy(given))
    arguments.build, arguments.peers = arguments.build.resolve(), arguments.peers.resolve()
    arguments.buffers = ["private"]
    if arguments.encryption == "tls":
        arguments.systems = list(dict.fromkeys(["stretto", "stretto_tls", *arguments.systems]))
    if arguments.page and given is None and (arguments.plots or arguments.encryption != "off"):
        parser.error("the parts of a page say for themselves what is plotted or encrypted")
    if arguments.training and arguments.cards > 1:
        parser.error("--training counts what goes through one card")
    if arguments.plots and "stretto_tls" in arguments.systems:
        parser.error("the plots are without encryption")
    if needs_cable(arguments):
        if arguments.cards > 1:
            parser.error("--delay, --loss and --connection-rate are for one card in a host")
        more = [name for name in arguments.shapes
                if max(hosts_systems.placement_of(name)) > 1]
        if more:
            parser.error("--delay, --loss and --connection-rate are for two hosts, not "
                         f"{more[0]}")
    return arguments


def needs_cable(arguments):
    """Whether the network needs a cable: a process, instead of the kernel, that forwards packets
    between two hosts."""
    return arguments.delay or arguments.loss or arguments.connection_rate


@contextlib.contextmanager
def network_of(arguments, placement):
    """Yields, for a `with` block, the network and a folder in which ranks keep its link
    measurements."""
    name = f"hosts{os.getpid()}"
    if needs_cable(arguments):
        program = arguments.build / "bin" / "lossy_cable_program"
        network = namespaces.Cable(name, program, arguments.delay, arguments.loss,
                                   arguments.connection_rate)
    else:
        network = namespaces.Network(name, max(placement) + 1, arguments.cards)
    network.streams = arguments.streams
    with tempfile.TemporaryDirectory(prefix="stretto_bench_links_") as cache:
        with network.up(arguments.rate, arguments.congestion_control):
            yield network, cache


def plain_link(network):
    """Returns (round trip, 16 MiB both ways) in seconds, measured with plain sockets between hosts
    0 and 1."""
    script = [sys.executable, str(ROOT / "bench" / "drivers" / "plain_link.py")]
    far = [*network.enter(1), *hosts_systems.on_core_of(1), *script, "serve"]
    near = [*network.enter(0), *hosts_systems.on_core_of(0), *script, "ask", network.address(1),
            str(PLAIN_BYTES)]
    with subprocess.Popen(far, stdout=subprocess.PIPE, text=True) as server:
        try:
            server.stdout.readline()
            words = subprocess.run(near, capture_output=True, text=True, check=True,
                                   timeout=START_SECONDS).stdout.split()
        finally:
            server.kill()
    return float(words[0]), float(words[1])


class Predictions:
    """The algorithm that the library would choose, and its predicted time, from links measured anew
    before each round: for seconds at a time the machine's cores are near each other or far, and
    small messages take 1.5 times as long when the cores are far."""

    def __init__(self, arguments, network, placement):
        self._program = str(arguments.build / "bin" / "stretto")
        self._network = network
        self._placement = placement
        self.answers = {}  # (operation, bytes, repeat) -> object

    def ask(self, operation, size, repeat):
        # A barrier has no size, but the program requires one.
        command = [self._program, "bench", "--explain", "--json", "--collective", operation,
                   "--bytes", str(size or 8)]
        answer = outputs_of(command, self._network, self._placement, "off")[0]
        self.answers[operation, size, repeat] = json.loads(answer)


def outputs_of(command, network, placement, cache, encryption="off", seconds=START_SECONDS):
    """Returns the output of each rank of a program that joins a job."""
    with tempfile.TemporaryDirectory(prefix="stretto_bench_hosts_") as meet:
        common = systems.clean_environment(meet) | {
            "STRETTO_SIZE": str(len(placement))} | hosts_systems.environment_of(network, cache,
                                                                                encryption)
        return outputs_of_each(
            [command] * len(placement), [common | {"STRETTO_RANK": str(rank)}
                                         for rank in range(len(placement))],
            network, placement, seconds)


def outputs_of_each(commands, environments, network, placement, seconds):
    """Returns the output of each rank. Each rank has its own command and environment."""
    with contextlib.ExitStack() as stack:
        # Files instead of pipes: nobody reads while the ranks run, and a full pipe would block
        # them.
        files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
                 for _ in placement]
        ranks = [subprocess.Popen([*network.enter(host), *hosts_systems.on_core_of(host), *command],
                                  env=environment, stdout=output, stderr=errors)
                 for host, command, environment, (output, errors)
                 in zip(placement, commands, environments, files)]
        try:
            end = time.monotonic() + seconds
            # A rank that fails leaves the others waiting, so one failure ends the wait.
            while (None in (statuses := [rank.poll() for rank in ranks]) and not any(statuses)
                   and time.monotonic() < end):
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        for file in itertools.chain(*files):
            file.seek(0)
        outputs = [[file.read() for file in each] for each in files]
    for rank in sorted(range(len(ranks)), key=lambda rank: not statuses[rank]):
        if statuses[rank] != 0:
            how = f"ended with {statuses[rank]}" if statuses[rank] else f"runs after {seconds} s"
            raise conversation.SystemFailed(f"{pathlib.Path(commands[rank][0]).name}, rank {rank}, "
                                            f"{how}: {outputs[rank][1].strip()}")
    return [output for output, _ in outputs]


def add_expectations(lines, link, placement, explained):
    """Adds to each line its floor, and the library's prediction from just before the line's
    round."""
    for line in lines:
        line["floor_us"] = 1e6 * hosts_floor.floor_s(line["operation"], line["bytes"], placement,
                                                     link)
        if not line["system"].startswith("stretto"):
            continue
        canonical = hosts_floor.canonical_floor_s(line["operation"], line["bytes"], placement, link)
        if canonical is not None and line["algorithm"] != "ring":
            line["canonical_us"] = 1e6 * canonical
        if line["system"] != "stretto":
            continue
        entry = explained.get((line["operation"], line["bytes"], line["repeat"]))
        line["chosen"] = entry["algorithm"] if entry else ""
        for one in entry["predicted"] if entry else []:
            if one["algorithm"] == (line["algorithm"] or line["chosen"]):
                line["predicted_us"] = 1e6 * one["seconds"]


def report_plots(arguments):
    """Measures the three tables of hosts_plots.py: two on the first shape, up to the largest of the
    requested sizes, and one on the same number of hosts with other numbers of ranks."""
    first = arguments.shapes[0]
    lines = plot_lines(arguments, first, hosts_plots.asks_on_one_shape(max(arguments.bytes)))
    for shape in hosts_plots.shapes_of_ranks(first):
        ranks = len(hosts_systems.placement_of(shape))
        lines += plot_lines(arguments, shape, hosts_plots.asks_of_ranks(ranks))
    bad = [f"{line['name']}, {line['plot']} {line['x']}: {line['error']}"
           for line in lines if "error" in line]
    return Report(hosts_plots.text(lines), lines, peers.versions_of(lines), bad)


def plot_lines(arguments, shape, asks):
    placement = hosts_systems.placement_of(shape)
    with network_of(arguments, placement) as (network, cache):
        contest, _ = contest_on(arguments, placement, network, hosts_plots.ALGORITHMS, cache)
        with contextlib.closing(contest):
            hosts_plots.measure(contest, asks)
    return contest.lines


def contest_on(arguments, placement, network, algorithms, cache):
    """Returns the contest of the systems that can run here, and the reasons why others cannot, by
    name."""
    cores = min(len(os.sched_getaffinity(0)), max(placement) + 1)
    place = systems.Place(len(placement), cores, arguments.build, arguments.peers)
    every = hosts_systems.all_on(network, placement, algorithms, cache)
    reasons = {name: every[name].missing(place) for name in arguments.systems}
    chosen = [every[name] for name, reason in reasons.items() if not reason]
    return (peers.Contest(arguments, chosen, place),
            {name: reason for name, reason in reasons.items() if reason})


def measure_shape(arguments, shape):
    """Returns the facts of one shape, and its lines, each with the shape and the rate."""
    placement = hosts_systems.placement_of(shape)
    arguments.ranks = len(placement)
    with network_of(arguments, placement) as (network, cache):
        round_trip_s, plain_s = plain_link(network)
        link = hosts_floor.Link(arguments.cards * arguments.rate, round_trip_s,
                                arguments.cards * namespaces.burst_bytes(arguments.rate))
        contest, missing = contest_on(arguments, placement, network, arguments.algorithms, cache)
        predictions = Predictions(arguments, network, placement)
        with contextlib.closing(contest):
            contest.run(predictions.ask)
    add_expectations(contest.lines, link, placement, predictions.answers)
    facts = {"shape": shape, "rate": arguments.rate, "cards": arguments.cards,
             "delay_ms": arguments.delay, "loss_permille": arguments.loss,
             "connection_rate": arguments.connection_rate,
             "round_trip_us": 1e6 * round_trip_s, "plain_16mib_ms": 1e3 * plain_s,
             "missing": missing, "notes": contest.notes}
    return facts, [line | {"shape": shape, "rate": arguments.rate} for line in contest.lines]


def train_on(arguments, shape):
    """Returns, for each step, the fraction of the time from its first bucket to the end of its last
    one in which the busiest port carried data."""
    placement = hosts_systems.placement_of(shape)
    command = [str(arguments.build / "bin" / "wire_driver"), TRAINING.steps, TRAINING.total,
               TRAINING.bucket, TRAINING.backward_ms]
    with network_of(arguments, placement) as (network, cache):
        outputs = outputs_of([str(word) for word in command], network, placement, cache,
                             arguments.encryption)
    wire_s_of_byte = 8 * hosts_floor.WIRE_BYTES_PER_BYTE / arguments.rate
    return [max(max(sent, received) * wire_s_of_byte / seconds
                for seconds, sent, received in of_ranks)
            for of_ranks in zip(*(json.loads(output) for output in outputs))]


def report_training(arguments):
    return wire_report(arguments,
                       {shape: train_on(arguments, shape) for shape in arguments.shapes})


def wire_report(arguments, shares):
    """If sending the bytes takes longer than the backward pass, reports a failure for a wire that
    is busy for less than LEAST_BUSY of a step."""
    wire_s = 8 * TRAINING.total * hosts_floor.WIRE_BYTES_PER_BYTE / arguments.rate
    least = LEAST_BUSY if wire_s > TRAINING.backward_ms / 1e3 else 0
    of_shapes = "; ".join(f"{shape} {100 * statistics.median(busy):.1f} % of the time (least "
                          f"{100 * min(busy):.1f} %)" for shape, busy in shares.items())
    text = (f"{arguments.rate / 1e6:g} Mbit/s, {TRAINING.total >> 20} MiB of gradients in buckets "
            f"of {TRAINING.bucket >> 20} MiB, backward {TRAINING.backward_ms} ms. The wire is "
            f"busy: {of_shapes}.")
    return Report(text, [shares], own_version(), bad=[
        f"{shape}: the wire is busy {statistics.median(busy):.1%} of the time, not {least:.0%}"
        for shape, busy in shares.items() if statistics.median(busy) < least])


def own_version():
    return {"stretto": f"stretto {peers.commit_of()}"}


def processor_seconds():
    """Returns the CPU time of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def join_on(arguments, placement):
    """Returns the facts of bench/hosts_joining.py for each repeat. Every repeat measures its links,
    as a job does in a new place."""
    facts = []
    with network_of(arguments, placement) as (network, _):
        for _ in range(arguments.repeats):
            began, used = time.time(), processor_seconds()
            outputs = outputs_of([str(arguments.build / "bin" / "join_driver")], network,
                                 placement, "off", arguments.encryption)
            facts.append(hosts_joining.facts_of(began, outputs)
                         | {"processor_s": processor_seconds() - used})
    return facts


def report_joining(arguments):
    if arguments.mesh:
        runs = [join_on(arguments, hosts_systems.placement_of(shape))
                for shape in hosts_joining.MESHES]
        text = hosts_joining.mesh_text(*runs)
    else:
        runs = [join_on(arguments, hosts_joining.placement_of(arguments.joining))]
        text = hosts_joining.text(runs[0])
    return Report(text, [fact for run in runs for fact in run], own_version())


def report_tables(arguments):
    runs = [measure_shape(arguments, shape) for shape in arguments.shapes]
    lines = [line for _, of_shape in runs for line in of_shape]
    failed = [line for line in lines if line["system"] == "stretto" and "error" in line]
    failed += [line for line in lines if line.get("error", "").startswith("wrong")]
    bad = [f"{line['shape']} {line['system']} {line['operation']} {line['algorithm']} "
           f"{line['bytes']} B: {line['error']}" for line in failed]
    text = "\n\n".join(hosts_report.text(*run).strip() for run in runs)
    return Report(text, lines, peers.versions_of(lines), bad)


def report(arguments):
    if arguments.plots:
        return report_plots(arguments)
    if arguments.training:
        return report_training(arguments)
    if arguments.joining or arguments.mesh:
        return report_joining(arguments)
    return report_tables(arguments)


def measure_page(arguments):
    """Measures the parts of the page, and writes each when it is complete; yields the report of
    each run as soon as it has ended."""
    for part in arguments.parts:
        runs = []
        for words in hosts_page.PARTS[part]:
            load = peers.cores_in_use()
            runs.append((words, load, report(parse_arguments(words.split(), arguments))))
            print(f"./dev bench hosts {words}\n\n{runs[-1][-1].text}\n", flush=True)
            yield runs[-1][-1]
        hosts_page.put(arguments.page, part, hosts_page.part_text(runs))


def main(words):
    arguments = parse_arguments(words)
    # Exits by an exception, so that all started processes are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    conversation.adopt_orphans()
    conversation.remove_remains()
    load = peers.cores_in_use()
    reports = []
    try:
        if arguments.page:
            reports.extend(measure_page(arguments))
        else:
            reports.append(report(arguments))
            print(reports[0].text)
    except (namespaces.NetworkError, conversation.SystemFailed,
            subprocess.SubprocessError) as error:
        print(f"./dev bench hosts: {error}", file=sys.stderr)
        return 2
    finally:  # Keeps the finished measurements.
        if reports:
            peers.write_lines(arguments.json, [line for one in reports for line in one.lines])
    peers.warn_if_busy(load)
    bad = [line for one in reports for line in one.bad]
    for line in bad:
        print(line, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

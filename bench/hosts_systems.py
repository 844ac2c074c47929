# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The systems that bench/hosts.py compares: those of bench/systems.py, with each rank on a host.

Each host has one core of its own, so that ranks of different hosts do not take turns on a core. As
many hosts as this machine has cores run at the same time, like real hosts.
"""

import dataclasses
import os

import systems

NAMES = ("stretto", "stretto_tls", "gloo", "openmpi")


def placement_of(name):
    """Returns the host of every rank: "2x2", "3+1", and "rr2x2" in turns. Raises ValueError for
    other words."""
    if "+" in name:
        return [host for host, ranks in enumerate(name.split("+")) for _ in range(int(ranks))]
    hosts, ranks = (int(word) for word in name.removeprefix("rr").split("x"))
    if name.startswith("rr"):
        return [host for _ in range(ranks) for host in range(hosts)]
    return [host for host in range(hosts) for _ in range(ranks)]


def on_core_of(host):
    """Returns the words that restrict a program to its host's core."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[host % len(cores)])]


class OnHosts(systems.System):
    """A system that starts each rank in the network namespace of its host."""

    def __init__(self, inner, network, placement, algorithms=()):
        super().__init__(inner.name, inner.title)
        self.family = inner.family
        self.is_restless = inner.is_restless
        self.inner = inner
        self.network = network
        self.placement = placement
        self.algorithms = algorithms

    def missing(self, place):
        return self.inner.missing(place)

    def settings(self, place):
        return "as it is" if self.family == "stretto" else self.inner.settings(place)

    def variants(self, operation, size, wanted):
        if operation == "barrier":
            return [systems.Variant(operation, 0)]
        in_place = operation in ("all_reduce", *systems.IN_PLACE_OPERATIONS)
        named = self.algorithms if operation == "all_reduce" else ()
        if len(set(self.placement)) == len(self.placement):  # No two ranks share a host's memory.
            mapped = ("two_level_mapped", "two_level_eager")
            named = [name for name in named if name not in mapped]
        return [systems.Variant(operation, size, "private", in_place, algorithm)
                for algorithm in ("", *named)]

    def start(self, place):
        return [dataclasses.replace(started, command=[*self.network.enter(host), *on_core_of(host),
                                                      *started.command])
                for host, started in zip(self.placement, self.inner.start(place))]


def mpirun_between(network, ranks_of, agent):
    """Returns (the words before an mpirun, its options): mpirun starts a daemon for `ranks_of`
    ranks on each host by a stand-in for ssh, which enters a namespace. The stand-in is written to
    the file `agent`."""
    subnets = network.subnets()
    cases = "".join(f"{network.address(host)}) space={network.space(host)};"
                    f" core='{' '.join(on_core_of(host))}';;\n" for host in range(len(ranks_of)))
    # Each daemon gets its own host name, because mpirun takes daemons of the same name for one.
    agent.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}esac\n'
                     'exec ip netns exec $space unshare --uts $core sh -c '
                     '"hostname $space; $*"\n')
    agent.chmod(0o755)
    options = ["--mca", "plm_rsh_agent", str(agent), "--mca", "plm_rsh_no_tree_spawn", "1",
               "--mca", "btl_tcp_if_include", ",".join(subnets), "--mca", "oob_tcp_if_include",
               subnets[0], "--host",
               ",".join(f"{network.address(host)}:{ranks}"
                        for host, ranks in enumerate(ranks_of))]
    return [*network.enter(0), *on_core_of(0), "unshare", "--uts", "sh", "-c",
            f'hostname {network.space(0)}; exec "$@"', "sh"], options


class OpenMpiOnHosts(OnHosts):
    """mpirun starts a daemon on each host."""

    def start(self, place):
        started, = self.inner.start(place)
        ranks_of = [self.placement.count(host) for host in range(max(self.placement) + 1)]
        in_turns = self.placement[:2] == [0, 1] and ranks_of[0] > 1
        at = started.command.index("-n")
        before, options = mpirun_between(self.network, ranks_of, place.meet / "agent")
        options += ["--map-by", "node" if in_turns else "slot"]
        command = [*before, *started.command[:at], *options, *started.command[at:]]
        return [dataclasses.replace(started, command=command)]


def environment_of(network, link_cache, encryption="off"):
    """Returns the environment of stretto's ranks, except for their identity. Jobs with and without
    encryption may run at the same time."""
    port = 29601 if encryption == "tls" else 29600
    subnets = network.subnets()
    cards = {"STRETTO_NETWORK": ",".join(subnets)} if len(subnets) > 1 else {}
    return cards | {
        "STRETTO_LINK_CACHE": str(link_cache),
        "STRETTO_STREAMS": str(max(network.streams, len(subnets))),
        "STRETTO_ENCRYPTION": encryption, "STRETTO_JOB_KEY": "7" * 64,
        "STRETTO_RENDEZVOUS": f"tcp://{network.address(0)}:{port}"}


def all_on(network, placement, algorithms, link_cache):
    """Returns every system by its name, in the order of columns."""
    gloo = systems.Gloo()
    # Unless told otherwise, Gloo uses the interface to which the host's name resolves.
    inner_start = gloo.start
    gloo.start = lambda place: [
        dataclasses.replace(started, environment=started.environment
                            | {"GLOO_SOCKET_IFNAME": network.device})
        for started in inner_start(place)]
    mpi = systems.Mpi("openmpi", "Open MPI 4", "openmpi4", "mpirun.openmpi",
                      ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl",
                       "vader,tcp,self", "--mca", "mpi_yield_when_idle", "1"])
    stretto = systems.Stretto("stretto", environment_of(network, link_cache))
    encrypted = systems.Stretto("stretto_tls", environment_of(network, link_cache, "tls"))
    return {"stretto": OnHosts(stretto, network, placement, algorithms),
            "stretto_tls": OnHosts(encrypted, network, placement),
            "gloo": OnHosts(gloo, network, placement),
            "openmpi": OpenMpiOnHosts(mpi, network, placement)}

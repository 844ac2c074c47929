# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The reference time for collectives between hosts: the bytes through the busiest port, and the
messages that must wait for each other, at half a measured round trip each. It is not a lower bound:
a system that polls for messages can be faster."""

import dataclasses
import math
import sys

import hosts_systems

# A 1514-byte Ethernet frame carries 1448 bytes of payload, over TCP with time stamps.
WIRE_BYTES_PER_BYTE = 1514 / 1448


@dataclasses.dataclass(frozen=True)
class Link:
    """The link of a host; `round_trip_s` is measured."""

    bits_per_second: float
    round_trip_s: float
    burst_bytes: int  # These bytes pass at once after a pause.

    def seconds(self, host_bytes, hops):
        """Returns the time for so many bytes out of, or into, a host in repeated operations, with
        `hops` messages that wait for each other. The bytes that pass at once were saved up while
        the wire was idle."""
        on_wire = host_bytes * WIRE_BYTES_PER_BYTE
        queued = max(0.0, on_wire - self.burst_bytes)
        return max(on_wire * 8 / self.bits_per_second,
                   hops * self.round_trip_s / 2 + queued * 8 / self.bits_per_second)


def host_bytes(operation, size, placement):
    """Returns the bytes of the busiest port if each host combines its ranks' data before
    sending."""
    ranks = len(placement)
    of_host = [placement.count(host) for host in sorted(set(placement))]
    hosts = len(of_host)
    if hosts < 2 or operation == "barrier":
        return 0.0
    if operation == "all_reduce":
        return 2 * (hosts - 1) / hosts * size
    if operation in ("broadcast", "reduce"):
        return float(size)
    if operation == "all_to_all":
        return max(own * (ranks - own) for own in of_host) / ranks * size
    # The larger of the host's own shares and the others' shares.
    return max(max(own, ranks - own) for own in of_host) / ranks * size


SUMS = ("all_reduce", "reduce_scatter", "reduce")  # `reduce` is to rank 0.


def subtrees(placement):
    """Returns for each host the number of largest subtrees of the canonical tree that lie entirely
    on it. The host has one partial for each of them, of every element."""
    found = dict.fromkeys(placement, 0)

    def visit(begin, end):
        if len(set(placement[begin:end])) == 1:
            found[placement[begin]] += 1
            return
        middle = begin + (1 << (end - begin - 1).bit_length() - 1)
        visit(begin, middle)
        visit(middle, end)

    visit(0, len(placement))
    return [found[host] for host in sorted(found)]


def canonical_host_bytes(operation, size, placement):
    """Returns the bytes of the busiest port for sums in the canonical order: for each element one
    host receives the partials of all other hosts, and sends the sum to all hosts, or to the root.
    Elements are assigned to hosts one by one, each to the host with which the busiest port has the
    least load."""
    counts = subtrees(placement)
    root = sorted(set(placement)).index(placement[0])
    hosts = range(len(counts))
    parts = 60 * len(counts)
    shares = [placement.count(host) / len(placement) for host in hosts]
    owned = [0] * len(counts)

    def busiest():
        ports = []
        for host in hosts:
            theirs = sum(owned) - owned[host]
            out = theirs * counts[host]
            into = owned[host] * (sum(counts) - counts[host])
            if operation == "all_reduce":  # The host sends the sums to the others.
                out += owned[host] * (len(counts) - 1)
                into += theirs
            elif operation == "reduce" and host == root:
                into += theirs
            elif operation == "reduce":
                out += owned[host]
            ports += [out, into]
        return max(ports)

    def with_one_more(host):
        owned[host] += 1
        worst = busiest()
        owned[host] -= 1
        return worst

    for part in range(parts):
        if operation == "reduce_scatter":  # Each host owns its ranks' shares.
            host = max(hosts, key=lambda each: shares[each] * (part + 1) - owned[each])
        else:
            host = min(hosts, key=with_one_more)
        owned[host] += 1
    return busiest() / parts * size


def hops(operation, placement):
    hosts = len(set(placement))
    if hosts < 2:
        return 0
    return 1 if operation == "all_to_all" else math.ceil(math.log2(hosts))


def floor_s(operation, size, placement, link):
    return link.seconds(host_bytes(operation, size, placement), hops(operation, placement))


def canonical_floor_s(operation, size, placement, link):
    """Returns the reference time for sums in the canonical order; None if it is not higher."""
    if operation not in SUMS or len(set(placement)) < 2:
        return None
    least = host_bytes(operation, size, placement)
    canonical = canonical_host_bytes(operation, size, placement)
    if canonical < 1.01 * least:
        return None
    return link.seconds(canonical, hops(operation, placement))


def main(shapes):
    """Prints, for each shape, the time in the canonical order as a multiple of the floor."""
    for shape in shapes:
        placement = hosts_systems.placement_of(shape)
        times = [canonical_host_bytes(operation, 1, placement) / host_bytes(operation, 1, placement)
                 for operation in SUMS]
        print(f"| {shape} | {' | '.join(f'{each:.2f}' for each in times)} |")


if __name__ == "__main__":
    main(sys.argv[1:])

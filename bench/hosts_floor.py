# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What no collective between hosts can be faster than: the bytes that its busiest port carries, and
the messages that must wait for each other."""

import dataclasses
import math

# Of 1514 bytes of an Ethernet frame 1448 are the program's, over TCP with time stamps.
WIRE_BYTES_PER_BYTE = 1514 / 1448


@dataclasses.dataclass(frozen=True)
class Link:
    """What a host has; `round_trip_s` is measured."""

    bits_per_second: float
    round_trip_s: float
    burst_bytes: int  # Pass at once, after a time in which nobody has sent.

    def seconds(self, host_bytes, hops):
        """For so many bytes out of, or into, a host, and messages that wait for each other, again
        and again: what passes at once has been saved up while the wire carried nothing."""
        on_wire = host_bytes * WIRE_BYTES_PER_BYTE
        queued = max(0.0, on_wire - self.burst_bytes)
        return max(on_wire * 8 / self.bits_per_second,
                   hops * self.round_trip_s / 2 + queued * 8 / self.bits_per_second)


def host_bytes(operation, size, placement):
    """Of the busiest port, with ranks of a host combined before anything leaves it."""
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
    # Of a host's own shares and of the others' ones, the more.
    return max(max(own, ranks - own) for own in of_host) / ranks * size


def hops(operation, placement):
    hosts = len(set(placement))
    if hosts < 2:
        return 0
    return 1 if operation == "all_to_all" else math.ceil(math.log2(hosts))


def floor_s(operation, size, placement, link):
    return link.seconds(host_bytes(operation, size, placement), hops(operation, placement))

# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""How long many processes on a few hosts take to join, and the resources that each then holds."""

import json
import statistics

HOSTS = 4
# The difference of these two shapes is the cost per rank on another host.
MESHES = ("4x2", "30x2")
MANY_RANKS = 1000


def placement_of(ranks):
    return [rank * HOSTS // ranks for rank in range(ranks)]


def facts_of(began, outputs):
    """Returns the facts of one run of bench/drivers/join_driver.cc. `began`: the time before the
    first process was started, in seconds since 1970."""
    told = [json.loads(output) for output in outputs]
    return {"ranks": len(told),
            "joined_s": max(one["joined"] for one in told) - began,
            "met_s": max(one["met"] for one in told) - began,
            "bytes_median": statistics.median(one["bytes"] for one in told),
            "bytes_max": max(one["bytes"] for one in told),
            "descriptors_median": statistics.median(one["descriptors"] for one in told),
            "descriptors_max": max(one["descriptors"] for one in told)}


def medians(runs):
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def text(runs):
    """Returns a sentence on all runs, with the medians."""
    median = medians(runs)
    return (f"{runs[0]['ranks']} ranks on {HOSTS} hosts: all had joined {median['joined_s']:.2f} s "
            f"after the first was started, and passed a barrier after {median['met_s']:.2f} s "
            f"(median of {len(runs)}; worst {max(run['met_s'] for run in runs):.2f} s). Starting, "
            f"joining and ending took {median['processor_s']:.2f} s of processor time. Joining "
            f"costs a rank {median['bytes_median'] / 2**20:.1f} MiB of memory (PSS; at most "
            f"{median['bytes_max'] / 2**20:.1f}) and {median['descriptors_median']:.0f} "
            f"descriptors (at most {median['descriptors_max']:.0f}).")


def mesh_text(few, many):
    """Returns the cost to a rank of each additional rank on another host, and the total for
    MANY_RANKS."""
    few, many = medians(few), medians(many)
    ranks = many["ranks"] - few["ranks"]
    more = MANY_RANKS - many["ranks"]
    of_each = {name: (many[name] - few[name]) / ranks
               for name in ("bytes_median", "descriptors_median")}
    total = {name: many[name] + more * each for name, each in of_each.items()}
    return (f"From {few['ranks']:.0f} to {many['ranks']:.0f} ranks, two per host, each rank on "
            f"another host costs a rank {of_each['bytes_median'] / 1024:.1f} KiB of memory (PSS) "
            f"and {of_each['descriptors_median']:.2f} descriptors. A job of {MANY_RANKS} ranks "
            f"would need {total['bytes_median'] / 2**20:.0f} MiB and "
            f"{total['descriptors_median']:.0f} descriptors per rank, and {MANY_RANKS * 2 - 4} "
            "connections per host. The kernel's memory is not included.")

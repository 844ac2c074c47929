// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/schedule/cost.h"

namespace stretto::group {

// Up to how many bytes, of all ranks together, an operation on mapped memory takes less time if
// each rank stages or reads more than it would have to, and saves one of two syncs. Modelled:
// measured between two ranks whose cores share a cache (memory_probe.h measures those of this
// machine).
struct OneSyncBytes {
  double reduced = 4 * 1024;  // Registered buffers that are reduced, by everybody wholly...
  double moved = 8 * 1024;    // ...or moved.
  // Private buffers that are reduced, which have to be staged anyway.
  double private_reduced = 64 * 1024;
  // The same of two ranks. Each reads as much of the other with one sync as with two, and what it
  // writes for the other leaves its hands once; beyond, its own buffer, read whole, leaves the
  // cache.
  double private_pair = 1024 * 1024;
};

// What the links of a job cost, the same numbers on all ranks: algorithms are chosen by them.
struct LinkModel {
  // Guesses until they are measured (link_probe.h); what matters is their ratio.
  schedule::LinkCost local = {
      .latency_seconds = 0.5e-6, .message_seconds = 0.2e-6, .seconds_per_byte = 1 / 5e9};
  schedule::LinkCost network = {
      .latency_seconds = 20e-6, .message_seconds = 3e-6, .seconds_per_byte = 1 / 2e9};
  OneSyncBytes one_sync = {};
  std::string source = "modelled";  // "measured just now", "measured 2 h ago".
};

// Which ranks of a job are on one host: a number per rank.
using HostList = RankVector<std::int32_t>;

// Of some of the ranks, numbered anew in the order in which hosts first appear, as schedules want
// it. An empty list, meaning one host, stays empty.
HostList hosts_of(const HostList& all, std::span<const Rank> members);

}  // namespace stretto::group

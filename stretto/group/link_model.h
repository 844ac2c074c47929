// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "stretto/base/rank_vector.h"
#include "stretto/base/take_lines.h"
#include "stretto/schedule/cost.h"

namespace stretto::group {

// Up to which sizes one sync is faster than two on mapped memory: with one sync, a rank stages or
// reads more bytes. The defaults are for two ranks whose cores share a cache; memory_probe.h
// measures the machine's own numbers. All sizes are bytes of all ranks together.
struct MemoryModel {
  // Up to how many bytes, of all ranks together, each rank had better stage or read more than it
  // would have to, and save one of two syncs.
  double reduced = 4 * 1024;  // Registered buffers, reduced by each rank entirely.
  double moved = 8 * 1024;    // Registered buffers, moved.
  // Private buffers, reduced. They have to be staged anyway.
  double private_reduced = 64 * 1024;
  // Private buffers of two ranks. Here a rank reads as much of the other's bytes with one sync as
  // with two. Beyond this size its own buffer, which one sync reads entirely, no longer fits in the
  // cache.
  double private_pair = 1024 * 1024;
  // Whether ranks take the cache lines that they have read of others' staging (take_lines()). The
  // default goes by the processor's type, until it is measured.
  bool takes_lines = writers_stay_owners();
};

// What the links of a job cost. All ranks have the same numbers, as they choose algorithms by them.
struct LinkModel {
  // The defaults are guesses until link_probe.h measures; what matters is their ratio.
  schedule::LinkCost local = {
      .latency_seconds = 0.5e-6, .message_seconds = 0.2e-6, .seconds_per_byte = 1 / 5e9};
  schedule::LinkCost network = {
      .latency_seconds = 20e-6, .message_seconds = 3e-6, .seconds_per_byte = 1 / 2e9};
  MemoryModel memory = {};
  std::string source = "modelled";  // "measured just now", "measured 2 h ago".
};

// The number of each rank's host.
using HostList = RankVector<std::int32_t>;

// The hosts of `members`, renumbered in the order in which they first appear, as schedules need it.
// An empty list, which means one host, stays empty.
inline HostList hosts_of(const HostList& all, std::span<const Rank> members) {
  HostList hosts;
  if (all.empty()) return hosts;
  std::map<std::int32_t, std::int32_t> numbers;
  for (const Rank member : members) {
    const auto next = static_cast<std::int32_t>(numbers.size());
    hosts.push_back(numbers.emplace(all[member], next).first->second);
  }
  return hosts;
}

}  // namespace stretto::group

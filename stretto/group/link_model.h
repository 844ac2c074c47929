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

// How an operation on mapped memory takes least time. The numbers are those of two ranks whose
// cores share a cache, until memory_probe.h has measured this machine.
struct MemoryModel {
  // Up to how many bytes, of all ranks together, each rank had better stage or read more than it
  // would have to, and save one of two syncs.
  double reduced = 4 * 1024;  // Registered buffers that are reduced, by everybody wholly...
  double moved = 8 * 1024;    // ...or moved.
  // Private buffers that are reduced, which have to be staged anyway.
  double private_reduced = 64 * 1024;
  // The same of two ranks. Each reads as much of the other with one sync as with two, and what it
  // writes for the other leaves its hands once; beyond, its own buffer, read whole, leaves the
  // cache.
  double private_pair = 1024 * 1024;
  // Whether ranks take the lines that they have read of what others stage (take_lines()): as the
  // processor is, until a measurement tells.
  bool takes_lines = writers_stay_owners();
};

// What the links of a job cost, the same numbers on all ranks: algorithms are chosen by them.
struct LinkModel {
  // Guesses until they are measured (link_probe.h); what matters is their ratio.
  schedule::LinkCost local = {
      .latency_seconds = 0.5e-6, .message_seconds = 0.2e-6, .seconds_per_byte = 1 / 5e9};
  schedule::LinkCost network = {
      .latency_seconds = 20e-6, .message_seconds = 3e-6, .seconds_per_byte = 1 / 2e9};
  MemoryModel memory = {};
  std::string source = "modelled";  // "measured just now", "measured 2 h ago".
};

// Which ranks of a job are on one host: a number per rank.
using HostList = RankVector<std::int32_t>;

// Of some of the ranks, numbered anew in the order in which hosts first appear, as schedules want
// it. An empty list, meaning one host, stays empty.
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

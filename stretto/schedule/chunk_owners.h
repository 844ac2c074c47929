// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {

// A subtree of the canonical tree that lies on one host, and is no part of a larger one that does.
struct Subtree {
  int begin = 0;
  int end = 0;
  bool single() const { return end - begin == 1; }
};

// Per host, in the order of ranks.
std::vector<std::vector<Subtree>> subtrees_by_host(const HostLayout& layout, int rank_count);

// Per chunk of a reduction whose result comes to every host, the host that owns it. Each host sends
// the owner a value for each of its subtrees, and gets the result back, so hosts with many subtrees
// own more: the host that sends or receives most does as little of it as possible. Hosts that have
// equally many take turns. Takes O(chunks * kinds of hosts) time.
std::vector<int> owner_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunk_count);

// As many as there are ranks, or a little more, so that each host can own equally many.
inline int chunk_count_for(int rank_count, int host_count) {
  return (rank_count + host_count - 1) / host_count * host_count;
}

}  // namespace stretto::schedule

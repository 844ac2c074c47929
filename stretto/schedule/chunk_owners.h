// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {

// A subtree of the canonical tree whose ranks are all on one host. It is maximal: no larger such
// subtree contains it.
struct Subtree {
  int begin = 0;
  int end = 0;
  bool single() const { return end - begin == 1; }
};

// The subtrees of each host, in the order of ranks.
std::vector<std::vector<Subtree>> subtrees_by_host(const HostLayout& layout);

// Returns, for each chunk, the host that owns it in a reduction whose result every host gets. Each
// other host sends the owner one value per subtree and gets the result back, so hosts with many
// subtrees should own more chunks. The choice minimizes the load of the host that sends or receives
// most. Hosts with equal numbers of subtrees take turns. Takes O(chunks * kinds of hosts) time.
std::vector<int> owner_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunk_count);

// The number of ranks, rounded up to a multiple of the number of hosts, so that each host can own
// equally many chunks.
inline int chunk_count_for(int rank_count, int host_count) {
  return (rank_count + host_count - 1) / host_count * host_count;
}

}  // namespace stretto::schedule

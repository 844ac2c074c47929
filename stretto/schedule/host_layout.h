// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// Says which ranks are on which host. A host's members are in the order of ranks. The position of a
// rank is its index among the members of its host.
class HostLayout {
 public:
  // `shape.hosts` has one entry per rank, or is empty: then all ranks are on one host.
  explicit HostLayout(const Shape& shape);

  int rank_count() const { return static_cast<int>(hosts_.size()); }
  int host_count() const { return static_cast<int>(members_.size()); }
  int host_of(Rank rank) const { return hosts_[rank]; }
  int position_of(Rank rank) const { return positions_[rank]; }
  const std::vector<Rank>& members(int host) const {
    return members_[static_cast<std::size_t>(host)];
  }
  const std::vector<Rank>& team_of(Rank rank) const { return members(host_of(rank)); }
  // Whether the ranks [begin, end) are all on one host. There must be at least one.
  bool together(int begin, int end) const { return run_end_[begin] >= end; }

 private:
  RankVector<int> hosts_;
  RankVector<int> positions_;
  RankVector<int> run_end_;                 // Per rank, the first later rank on another host.
  std::vector<std::vector<Rank>> members_;  // Per host.
};

}  // namespace stretto::schedule

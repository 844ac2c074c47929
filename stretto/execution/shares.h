// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/base/operation.h"

namespace stretto::execution {

// How many elements belong to each rank of a group, where that is not the same for all.
struct Shares {
  // Per rank. For an all_to_all: what this rank sends to each rank; or, once it knows that, what
  // each rank sends to each, row by row. Empty: equal shares.
  std::vector<std::size_t> counts;
  // For an all_to_all: what this rank receives from each rank, unless `counts` has all ranks' rows.
  std::vector<std::size_t> received;

  bool equal() const { return counts.empty(); }
};

// A view of shares whose lists belong to somebody else.
struct SharesView {
  std::span<const std::size_t> counts;
  std::span<const std::size_t> received;

  bool equal() const { return counts.empty(); }
  Shares copy() const {
    return {{counts.begin(), counts.end()}, {received.begin(), received.end()}};
  }
  friend bool operator==(const SharesView& a, const Shares& b) {
    return std::ranges::equal(a.counts, b.counts) && std::ranges::equal(a.received, b.received);
  }
};

// Sum of the counts.
std::size_t total(std::span<const std::size_t> counts);

// A number that differs where the lists differ, never 0. For OperationDescriptor::layout.
std::uint64_t layout_hash(std::span<const std::size_t> counts);

// Whether each message says its own count: in an all_to_all with unequal shares, no rank knows all
// counts.
inline bool counts_by_message(const OperationDescriptor& operation) {
  return operation.collective == Collective::all_to_all && operation.layout != 0;
}

}  // namespace stretto::execution

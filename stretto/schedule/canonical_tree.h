// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <vector>

namespace stretto::schedule {

// A node of the canonical tree (see kernel/reduce.h): positions [begin, middle) are in its left
// subtree and [middle, end) in its right one. The size of the left subtree is a power of two and
// not less than the size of the right one.
struct Split {
  std::int32_t begin = 0;
  std::int32_t middle = 0;
  std::int32_t end = 0;
};

// The node over the positions [begin, end), of which there must be at least two.
Split split_of(std::int32_t begin, std::int32_t end);

// The nodes above `position` in the tree over `count` positions, from the root of the tree down: at
// most ceil(log2 count) nodes.
std::vector<Split> splits_above(std::int32_t position, std::int32_t count);
// The same nodes, from the bottom of the tree up.
std::vector<Split> splits_upwards(std::int32_t position, std::int32_t count);

// The nodes above `position`, from the root down, in a flatter tree whose nodes each merge `levels`
// (1 or 2) levels of the canonical tree; the lowest node may merge fewer. Each node is a list: the
// positions at which its subtrees (at most 2 or 4) begin, and the end of the last subtree.
std::vector<std::vector<std::int32_t>> merged_nodes_above(std::int32_t position, std::int32_t count,
                                                          std::int32_t levels);

}  // namespace stretto::schedule

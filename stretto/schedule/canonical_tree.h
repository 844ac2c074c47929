// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <vector>

namespace stretto::schedule {

// A node of the canonical tree (see kernel/reduce.h): positions [begin, middle) lie to its left,
// [middle, end) to its right. The left side has a power of two of them, and at least as many.
struct Split {
  std::int32_t begin = 0;
  std::int32_t middle = 0;
  std::int32_t end = 0;
};

// The node of [begin, end), which must be two positions or more.
Split split_of(std::int32_t begin, std::int32_t end);

// The nodes above one of `count` positions, the top of the tree first: at most ceil(log2 count).
std::vector<Split> splits_above(std::int32_t position, std::int32_t count);
// The same, the bottom of the tree first.
std::vector<Split> splits_upwards(std::int32_t position, std::int32_t count);

// The same of a flatter tree, in which a node takes in `levels` levels of the canonical one, 1 or 2
// (the last node perhaps fewer). A node is the positions at which its subtrees, up to 2 or 4,
// begin, and the end of the last.
std::vector<std::vector<std::int32_t>> merged_nodes_above(std::int32_t position, std::int32_t count,
                                                          std::int32_t levels);

}  // namespace stretto::schedule

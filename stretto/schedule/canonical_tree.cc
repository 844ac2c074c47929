// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/canonical_tree.h"

#include <algorithm>
#include <bit>

namespace stretto::schedule {
namespace {

// Where the subtrees of [begin, end) that are `levels` levels below its root begin, and where the
// last one ends.
std::vector<std::int32_t> bounds_of(std::int32_t begin, std::int32_t end, std::int32_t levels) {
  const Split top = split_of(begin, end);
  std::vector<std::int32_t> bounds = {begin, top.middle, end};
  if (levels == 1) return bounds;
  if (end - top.middle > 1) bounds.insert(bounds.begin() + 2, split_of(top.middle, end).middle);
  if (top.middle - begin > 1) bounds.insert(bounds.begin() + 1, split_of(begin, top.middle).middle);
  return bounds;
}

}  // namespace

Split split_of(std::int32_t begin, std::int32_t end) {
  const auto last = static_cast<std::uint32_t>(end - begin - 1);
  return {begin, begin + static_cast<std::int32_t>(std::bit_floor(last)), end};
}

std::vector<Split> splits_above(std::int32_t position, std::int32_t count) {
  std::vector<Split> splits;
  std::int32_t begin = 0;
  std::int32_t end = count;
  while (end - begin > 1) {
    const Split split = splits.emplace_back(split_of(begin, end));
    (position < split.middle ? end : begin) = split.middle;
  }
  return splits;
}

std::vector<Split> splits_upwards(std::int32_t position, std::int32_t count) {
  std::vector<Split> splits = splits_above(position, count);
  std::ranges::reverse(splits);
  return splits;
}

std::vector<std::vector<std::int32_t>> merged_nodes_above(std::int32_t position, std::int32_t count,
                                                          std::int32_t levels) {
  std::vector<std::vector<std::int32_t>> nodes;
  std::int32_t begin = 0;
  std::int32_t end = count;
  while (end - begin > 1) {
    const auto& bounds = nodes.emplace_back(bounds_of(begin, end, levels));
    const auto after = std::ranges::upper_bound(bounds, position);
    begin = *(after - 1);
    end = *after;
  }
  return nodes;
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/canonical_tree.h"

#include <bit>

namespace stretto::schedule {

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

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <tuple>
#include <type_traits>

#include "stretto/base/rank_vector.h"

namespace stretto::testing {

// Calls connect(a, b) for each pair of ranks; it returns the two ends of their connection. In the
// result, [r][p] is the end of rank r that leads to p; [r][r] is empty.
template <class Connect>
auto connect_pairs(int ranks, const Connect& connect) {
  using End = typename std::invoke_result_t<Connect, int, int>::first_type;
  RankVector<RankVector<End>> ends(ranks);
  for (auto& row : ends) row = RankVector<End>(ranks);
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) std::tie(ends[a][b], ends[b][a]) = connect(a, b);
  }
  return ends;
}

}  // namespace stretto::testing

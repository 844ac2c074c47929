// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <bit>
#include <set>

#include <gtest/gtest.h>

#include "stretto/schedule/cost.h"

namespace stretto::schedule {
namespace {

constexpr std::size_t kBytes = 1 << 20;

Cost price(Collective collective, std::string_view name, int n) {
  return cost(*find_algorithm(collective, Access::messages, name), n, {.bytes = kBytes});
}

std::size_t ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

TEST(RecursiveHalving, TakesLogarithmicallyManySteps) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_LE(price(Collective::all_reduce, "recursive_halving", n).steps, 2 * ceil_log2(n)) << n;
    EXPECT_EQ(price(Collective::reduce_scatter, "recursive_halving", n).steps, ceil_log2(n)) << n;
  }
}

TEST(RecursiveHalving, SendsAsFewBytesAsRingForPowersOfTwo) {
  for (const int n : {2, 4, 8, 64}) {
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter}) {
      EXPECT_EQ(price(collective, "recursive_halving", n).sent_bytes_max,
                price(collective, "ring", n).sent_bytes_max);
    }
  }
}

TEST(RecursiveHalving, SendsAtMostTheBufferUpAndDown) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_LE(price(Collective::all_reduce, "recursive_halving", n).sent_bytes_max, 2 * kBytes)
        << n;
    EXPECT_LE(price(Collective::reduce_scatter, "recursive_halving", n).sent_bytes_max, kBytes)
        << n;
  }
}

TEST(RecursiveHalving, TalksToFewRanksForPowersOfTwo) {
  std::set<int> peers;
  for (const Step& step : recursive_halving_all_reduce({.rank = 5, .rank_count = 64}).steps) {
    if (step.kind == StepKind::send) peers.insert(step.peer.value());
  }
  EXPECT_EQ(peers, (std::set<int>{4, 7, 1, 13, 21, 37}));
}

}  // namespace
}  // namespace stretto::schedule

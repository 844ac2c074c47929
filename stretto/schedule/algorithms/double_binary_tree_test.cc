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

Cost price(Collective collective, int n) {
  const Algorithm* algorithm = find_algorithm(collective, Access::messages, "double_binary_tree");
  return cost(*algorithm, n, {.bytes = kBytes});
}

std::size_t ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// The point of having two trees: who serves others in one only receives in the other.
TEST(DoubleBinaryTree, NobodyServesOthersInBothTrees) {
  for (int n = 2; n <= 64; ++n) {
    for (int rank = 1; rank < n; ++rank) {
      std::set<int> chunks;
      const Schedule schedule = double_binary_tree_broadcast({.rank = rank, .rank_count = n});
      for (const Step& step : schedule.steps) {
        if (step.kind != StepKind::send) continue;
        chunks.insert(schedule.sources(step).front().slot.chunk.value());
      }
      EXPECT_LE(chunks.size(), 1) << "rank " << rank << " of " << n;
    }
  }
}

TEST(DoubleBinaryTree, SendsTheBufferOnceEachWay) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_EQ(price(Collective::broadcast, n).sent_bytes_max, kBytes);
    EXPECT_EQ(price(Collective::reduce, n).sent_bytes_max, kBytes);
    EXPECT_LE(price(Collective::all_reduce, n).sent_bytes_max, 2 * kBytes);
  }
}

TEST(DoubleBinaryTree, TakesLogarithmicallyManySteps) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_LE(price(Collective::broadcast, n).steps, ceil_log2(n)) << n;
    EXPECT_LE(price(Collective::reduce, n).steps, ceil_log2(n)) << n;
    EXPECT_LE(price(Collective::all_reduce, n).steps, 2 * ceil_log2(n)) << n;
  }
}

// In many segments, a long buffer takes little more than its own time on one link.
TEST(DoubleBinaryTree, BeatsOneTreeForLongBroadcasts) {
  const CostQuery query{.bytes = 64 << 20, .segment_bytes = 1 << 18};
  auto seconds = [&](const char* name) {
    return cost(*find_algorithm(Collective::broadcast, Access::messages, name), 32, query).seconds;
  };
  EXPECT_LT(2 * seconds("double_binary_tree"), seconds("binomial_tree"));
}

}  // namespace
}  // namespace stretto::schedule

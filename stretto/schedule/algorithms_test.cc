// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "stretto/schedule/cost.h"
#include "stretto/schedule/verify/verify.h"
#include "tests/support/algorithms_for.h"

namespace stretto::schedule {
namespace {

std::string test_name(const ::testing::TestParamInfo<Algorithm>& info) {
  return std::string(name(info.param.collective)) + "_" + std::string(info.param.name);
}

class EveryAlgorithm : public ::testing::TestWithParam<Algorithm> {};

// Few ranks are enough for the address sanitizer: they make the same kinds of accesses.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kMostRanks = 24;
#else
constexpr int kMostRanks = 64;
#endif

// An all_to_all has n * n chunks, so half as many ranks are as much work, and show as much.
TEST_P(EveryAlgorithm, IsCorrectForOneToSixtyFourRanks) {
  const int most = kMostRanks / (GetParam().collective == Collective::all_to_all ? 2 : 1);
  for (int n = 1; n <= most; ++n) {
    for (const int root : {0, n / 3}) {
      if (root > 0 && !has_root(GetParam().collective)) continue;
      const Status status = verify(GetParam().build_all(n, root));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST_P(EveryAlgorithm, IsCorrectForManyRanks) {
  const bool personal = GetParam().collective == Collective::all_to_all;
  const Status status = verify(GetParam().build_all(personal ? 48 : 128));
  EXPECT_TRUE(status.ok()) << status.message();
}

// One rank's schedule may be long, but only in proportion to the number of ranks. Where chunks are
// personal and take log2 n hops, each hop has a step at both ends and leaves half of the chunks.
TEST_P(EveryAlgorithm, NeedsMemoryInProportionToTheRanks) {
  const bool personal = GetParam().collective == Collective::all_to_all;
  for (const int n : {2, 100, 1000, 1025}) {
    const int hops = personal ? std::bit_width(static_cast<unsigned>(n - 1)) : 0;
    for (const Rank rank : {0, 1, n / 2, n - 1}) {
      const Schedule schedule = GetParam().build({rank, n, 0});
      EXPECT_LE(std::ssize(schedule.steps), std::max(6, hops) * n) << "rank " << rank.value();
      EXPECT_LE(std::ssize(schedule.places), std::max(9, hops) * n) << "rank " << rank.value();
      // Where values are combined in pairs, sums lie beside arriving chunks: 5/4 of the buffer.
      EXPECT_LE(schedule.raw_slots + schedule.partial_slots, (personal ? 8 : 5) * n / 4 + 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, EveryAlgorithm,
                         ::testing::ValuesIn(algorithms().begin(), algorithms().end()), test_name);

TEST(Algorithms, RootedOnesAreCorrectForEveryRoot) {
  for (const Algorithm& algorithm : algorithms()) {
    if (!has_root(algorithm.collective)) continue;
    for (int n = 1; n <= 17; ++n) {
      for (int root = 0; root < n; ++root) {
        const Status status = verify(algorithm.build_all(n, root));
        ASSERT_TRUE(status.ok()) << status.message() << ", root " << root;
      }
    }
  }
}

// If all ranks began with their peers in the order of ranks, all would send to rank 0 at once. This
// is right only where everything is for the root.
TEST(Algorithms, NoRankGetsTheFirstMessageOfMoreThanAQuarter) {
  constexpr int kRanks = 16;
  for (const Algorithm& algorithm : algorithms()) {
    // These send to one rank on purpose.
    const bool to_root =
        algorithm.collective == Collective::reduce || algorithm.collective == Collective::gather ||
        (algorithm.collective == Collective::barrier && algorithm.name == "direct");
    if (algorithm.access == Access::mapped || to_root) continue;
    RankVector<int> firsts(kRanks);
    for (const Schedule& schedule : algorithm.build_all(kRanks)) {
      const auto first = std::ranges::find(schedule.steps, StepKind::send, &Step::kind);
      if (first != schedule.steps.end()) ++firsts[first->peer];
    }
    EXPECT_LE(std::ranges::max(firsts), kRanks / 4) << algorithm.name;
  }
}

TEST(Algorithms, NamesAndNumbersAreUniquePerCollective) {
  std::set<std::tuple<Collective, std::string_view>> names;
  std::set<std::tuple<Collective, int>> numbers;
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_NE(algorithm.id, 0);
    EXPECT_TRUE(names.emplace(algorithm.collective, algorithm.name).second) << algorithm.name;
    EXPECT_TRUE(numbers.emplace(algorithm.collective, algorithm.id).second) << algorithm.name;
  }
}

// The numbers travel between ranks, so they may not change.
TEST(Algorithms, NumbersAreStable) {
  const std::vector<std::string_view> families = {"",
                                                  "ring",
                                                  "direct",
                                                  "recursive_doubling",
                                                  "binomial_tree",
                                                  "direct_mapped",
                                                  "staged_mapped",
                                                  "pairwise",
                                                  "bruck",
                                                  "knomial",
                                                  "recursive_halving",
                                                  "double_binary_tree",
                                                  "two_level",
                                                  "",
                                                  "eager_mapped",
                                                  "two_level_mapped",
                                                  "two_level_eager"};
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_EQ(families.at(algorithm.id), algorithm.name);
    // Layers below this one have the same names.
    EXPECT_EQ(algorithm_name(algorithm.id), algorithm.name);
  }
}

TEST(Algorithms, EveryCollectiveHasACanonicalOrPlainChoiceForBothKindsOfAccess) {
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::barrier, Collective::reduce, Collective::gather,
        Collective::scatter, Collective::all_to_all}) {
    for (const Access access : {Access::messages, Access::mapped}) {  // Not Access::both.
      const auto choices = testing::algorithms_for(collective, access);
      EXPECT_TRUE(std::ranges::any_of(choices, [](const Algorithm* algorithm) {
        return algorithm->order != Order::fixed;
      })) << name(collective);
    }
  }
}

TEST(Algorithms, AreFoundByName) {
  const Algorithm* ring = find_algorithm(Collective::all_gather, Access::messages, "ring");
  ASSERT_NE(ring, nullptr);
  EXPECT_EQ(ring->collective, Collective::all_gather);
  EXPECT_EQ(find_algorithm(Collective::all_gather, Access::mapped, "ring"), nullptr);
  EXPECT_EQ(find_algorithm(Collective::all_gather, Access::messages, "rong"), nullptr);
}

TEST(RecursiveHalving, TalksToFewRanksForPowersOfTwo) {
  std::set<int> peers;
  const Algorithm* halving =
      find_algorithm(Collective::all_reduce, Access::messages, "recursive_halving");
  for (const Schedule schedule = halving->build({.rank = 5, .rank_count = 64});
       const Step& step : schedule.steps) {
    if (step.kind == StepKind::send) peers.insert(step.peer.value());
  }
  EXPECT_EQ(peers, (std::set<int>{4, 7, 1, 13, 21, 37}));
}

// A rank that serves others in one tree only receives in the other: the reason for two trees.
TEST(DoubleBinaryTree, NobodyServesOthersInBothTrees) {
  const Algorithm* broadcast =
      find_algorithm(Collective::broadcast, Access::messages, "double_binary_tree");
  for (int n = 2; n <= 64; ++n) {
    for (int rank = 1; rank < n; ++rank) {
      std::set<int> chunks;
      const Schedule schedule = broadcast->build({.rank = rank, .rank_count = n});
      for (const Step& step : schedule.steps) {
        if (step.kind != StepKind::send) continue;
        chunks.insert(schedule.sources(step).front().slot.chunk.value());
      }
      EXPECT_LE(chunks.size(), 1) << "rank " << rank << " of " << n;
    }
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

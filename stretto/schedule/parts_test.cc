// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"
#include "stretto/schedule/chunk_owners.h"
#include "stretto/schedule/print.h"
#include "tests/support/expect_contains.h"
#include "tests/support/hosts.h"

namespace stretto::schedule {
namespace {

using Nodes = std::vector<std::vector<std::int32_t>>;

TEST(CanonicalTree, OneLevelAtATimeIsTheTreeItself) {
  for (int count = 1; count <= 40; ++count) {
    for (int position = 0; position < count; ++position) {
      const auto splits = splits_above(position, count);
      const Nodes nodes = merged_nodes_above(position, count, 1);
      ASSERT_EQ(nodes.size(), splits.size());
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::vector<std::int32_t> node = {splits[i].begin, splits[i].middle, splits[i].end};
        EXPECT_EQ(nodes[i], node);
      }
    }
  }
}

TEST(CanonicalTree, TwoLevelsMergeIntoNodesOfUpToFour) {
  EXPECT_EQ(merged_nodes_above(6, 16, 2), (Nodes{{0, 4, 8, 12, 16}, {4, 5, 6, 7, 8}}));
  EXPECT_EQ(merged_nodes_above(2, 3, 2), (Nodes{{0, 1, 2, 3}}));
  EXPECT_EQ(merged_nodes_above(4, 5, 2), (Nodes{{0, 2, 4, 5}}));
  EXPECT_EQ(merged_nodes_above(3, 5, 2), (Nodes{{0, 2, 4, 5}, {2, 3, 4}}));
  EXPECT_EQ(merged_nodes_above(0, 1, 2), Nodes());
}

TEST(ScheduleBuilder, KeepsTheOrderAndTheHead) {
  ScheduleBuilder schedule({.rank = 1, .rank_count = 3}, {.algorithm = "test",
                                                          .collective = Collective::all_reduce,
                                                          .order = Order::fixed,
                                                          .chunk_count = 2});
  schedule.send(input(0), 2);
  schedule.recv(0, raw(0, 1));
  schedule.reduce({raw(0, 1), input(1)}, {partial(2, 1)});
  schedule.reduce({partial(2, 1)}, {output(1)}).completes();
  schedule.copy(input(0), output(0));
  schedule.send_signal(0);
  schedule.recv_signal(2);
  EXPECT_EQ(print(std::move(schedule).build()),
            "all_reduce by test, rank 1 of 3: messages, fixed order, 2 chunks, 1 raw slot, "
            "3 partial slots\n"
            "  0  send input c0 to 2\n"
            "  1  recv raw 0 (c1) from 0\n"
            "  2  reduce raw 0 (c1), input c1 > partial 2 (c1)\n"
            "  3  reduce partial 2 (c1) > output c1, completes\n"
            "  4  copy input c0 > output c0\n"
            "  5  send signal to 0\n"
            "  6  recv signal from 2\n");
}

TEST(ScheduleBuilder, NumbersMessagesPerPeerAndDirection) {
  ScheduleBuilder builder({.rank = 0, .rank_count = 3}, {.algorithm = "test"});
  builder.send_signal(1);
  builder.send_signal(2);
  builder.recv_signal(1);
  builder.send_signal(1);
  const Schedule schedule = std::move(builder).build();
  std::vector<int> numbers;
  for (const Step& step : schedule.steps) numbers.push_back(step.message);
  EXPECT_EQ(numbers, (std::vector<int>{0, 0, 0, 1}));
}

TEST(ScheduleBuilder, CountsOtherRanksSlotsToo) {
  ScheduleBuilder builder({.rank = 0, .rank_count = 2},
                          {.algorithm = "test", .access = Access::mapped});
  builder.copy(Place{1, raw(4, 0)}, output(0));
  EXPECT_EQ(std::move(builder).build().raw_slots, 5);
}

TEST(ScheduleBuilder, HandsOutUnusedSlots) {
  ScheduleBuilder builder({.rank = 0, .rank_count = 2}, {.algorithm = "test"});
  EXPECT_EQ(builder.unused_raw(0), raw(0, 0));
  builder.recv(1, builder.unused_raw(0));
  EXPECT_EQ(builder.unused_raw(0), raw(1, 0));
  EXPECT_EQ(builder.unused_partial(0), partial(0, 0));
}

TEST(ScheduleBuilder, RefusesRanksThatDoNotExist) {
  EXPECT_THROW(ScheduleBuilder({.rank = 2, .rank_count = 2}, {}), InternalError);
  EXPECT_THROW(ScheduleBuilder({.rank = 0, .rank_count = 0}, {}), InternalError);
  EXPECT_THROW(ScheduleBuilder({.rank = 0, .rank_count = 2, .root = -1}, {}), InternalError);
}

TEST(Neighbour, GoesRoundBothWays) {
  const Shape shape{.rank = 1, .rank_count = 4};
  EXPECT_EQ(neighbour(shape, 1), 2);
  EXPECT_EQ(neighbour(shape, 3), 0);
  EXPECT_EQ(neighbour(shape, -2), 3);
  EXPECT_EQ(neighbour(shape, -4), 1);
}

using testing::Hosts;

std::vector<std::vector<Subtree>> subtrees_of(const Hosts& hosts) {
  const auto ranks = static_cast<std::int32_t>(hosts.size());
  return subtrees_by_host(HostLayout({.rank_count = ranks, .hosts = hosts}));
}

// Returns how many chunks the busiest port sends or receives if the hosts `owners` own them.
int busiest_port(const std::vector<std::vector<Subtree>>& subtrees,
                 const std::vector<int>& owners) {
  const auto hosts = static_cast<int>(subtrees.size());
  int values = 0;
  for (const auto& of_host : subtrees) values += static_cast<int>(of_host.size());
  int most = 0;
  for (int host = 0; host < hosts; ++host) {
    const auto owned = static_cast<int>(std::ranges::count(owners, host));
    const auto others = static_cast<int>(owners.size()) - owned;
    const auto own = static_cast<int>(subtrees[static_cast<std::size_t>(host)].size());
    most = std::max({most, owned * (hosts - 1) + others * own, owned * (values - own) + others});
  }
  return most;
}

int best_of_two_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunks) {
  int best = busiest_port(subtrees, std::vector<int>(static_cast<std::size_t>(chunks), 0));
  for (int first = 0; first <= chunks; ++first) {
    std::vector<int> owners(static_cast<std::size_t>(chunks), 1);
    std::fill_n(owners.begin(), first, 0);
    best = std::min(best, busiest_port(subtrees, owners));
  }
  return best;
}

TEST(ChunkOwners, EqualHostsTakeTurns) {
  EXPECT_EQ(owner_hosts(subtrees_of({0, 0, 1, 1}), 4), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 1, 0, 1}), 4), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 1, 2}), 3), (std::vector{0, 1, 2}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 0}), 2), (std::vector{0, 0}));
}

TEST(ChunkOwners, WhoWouldSendTwoValuesOwnsEverything) {
  // Of the tree ((0 1) (2 3)) the first host has two values, (0 1) and 2. The second host has one.
  const auto subtrees = subtrees_of({0, 0, 0, 1});
  ASSERT_EQ(subtrees[0].size(), 2U);
  const std::vector<int> owners = owner_hosts(subtrees, 4);
  EXPECT_EQ(owners, (std::vector{0, 0, 0, 0}));
  // The whole buffer goes each way once, or one and a half times if the hosts took turns.
  EXPECT_EQ(busiest_port(subtrees, owners), 4);
  EXPECT_EQ(busiest_port(subtrees, {0, 1, 0, 1}), 6);
}

TEST(ChunkOwners, TheBusiestPortOfTwoHostsIsAsIdleAsItCanBe) {
  for (std::uint32_t ranks = 2; ranks <= 9; ++ranks) {
    for (std::uint32_t layout = 1; layout < (1U << (ranks - 1)); ++layout) {
      Hosts hosts;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        hosts.push_back(static_cast<std::int32_t>((layout << 1 >> r) & 1));
      }
      const auto subtrees = subtrees_of(hosts);
      const int chunks = chunk_count_for(static_cast<int>(ranks), 2);
      const int busiest = busiest_port(subtrees, owner_hosts(subtrees, chunks));
      EXPECT_LE(busiest, best_of_two_hosts(subtrees, chunks) + 1) << ranks << " of " << layout;
    }
  }
}

std::vector<Schedule> all_ranks(Collective collective, Access access, std::string_view name,
                                int n) {
  return find_algorithm(collective, access, name)->build_all(n);
}

TEST(Print, RingOfThreeForOneRank) {
  const auto schedules = all_ranks(Collective::all_reduce, Access::messages, "ring", 3);
  EXPECT_EQ(print(schedules[0]),
            "all_reduce by ring, rank 0 of 3: messages, fixed order, 3 chunks, 1 raw slot, "
            "2 partial slots\n"
            "  0  send input c2 to 1\n"
            "  1  recv raw 0 (c1) from 2\n"
            "  2  reduce raw 0 (c1), input c1 > partial 0 (c1)\n"
            "  3  send partial 0 (c1) to 1\n"
            "  4  recv partial 1 (c0) from 2\n"
            "  5  reduce partial 1 (c0), input c0 > output c0, completes\n"
            "  6  send output c0 to 1\n"
            "  7  recv output c2 from 2\n"
            "  8  send output c2 to 1\n"
            "  9  recv output c1 from 2\n");
}

TEST(Print, RingOfFourSideBySide) {
  const auto schedules = all_ranks(Collective::all_reduce, Access::messages, "ring", 4);
  EXPECT_EQ(print(schedules),
            "all_reduce by ring on 4 ranks: messages, fixed order, 4 chunks, 1 raw slot, "
            "2 partial slots\n"
            "step 0   0>1 c3   1>2 c0   2>3 c1   3>0 c2\n"
            "step 1   0>1 partial c2   1>2 partial c3   2>3 partial c0   3>0 partial c1\n"
            "step 2   0>1 partial c1   1>2 partial c2   2>3 partial c3   3>0 partial c0\n"
            "step 3   0>1 c0   1>2 c1   2>3 c2   3>0 c3\n"
            "step 4   0>1 c3   1>2 c0   2>3 c1   3>0 c2\n"
            "step 5   0>1 c2   1>2 c3   2>3 c0   3>0 c1\n");
}

TEST(Print, RecursiveDoublingOfFive) {
  const auto schedules =
      all_ranks(Collective::all_reduce, Access::messages, "recursive_doubling", 5);
  EXPECT_EQ(print(schedules),
            "all_reduce by recursive_doubling on 5 ranks: messages, canonical order, 1 chunk, "
            "2 raw slots, 3 partial slots\n"
            "step 0   0>1 c0   1>0 c0   2>3 c0   3>2 c0   4>0 c0   4>1 c0   4>2 c0   4>3 c0\n"
            "step 1   0>2 partial c0   1>3 partial c0   2>0 partial c0   3>1 partial c0\n"
            "step 2   0>4 partial c0\n");
}

TEST(Print, LongLinesAreBrokenAtTheSameColumn) {
  const std::string text =
      print(all_ranks(Collective::barrier, Access::messages, "recursive_doubling", 8));
  expect_contains(text,
                  "step 0   0>1 signal   1>2 signal   2>3 signal   3>4 signal   4>5 signal   "
                  "5>6 signal   6>7 signal\n         7>0 signal\n");
}

TEST(Print, MappedStepsStandBetweenTheirSyncs) {
  const auto schedules = all_ranks(Collective::all_reduce, Access::mapped, "staged_mapped", 2);
  EXPECT_EQ(print(schedules),
            "all_reduce by staged_mapped on 2 ranks: mapped, canonical order, 2 chunks, "
            "2 raw slots, 0 partial slots\n"
            "  0  copy input c1 of 0 > raw 1 (c1) of 0\n"
            "  1  copy input c0 of 1 > raw 0 (c0) of 1\n"
            "sync\n"
            "  0  reduce input c0 of 0, raw 0 (c0) of 1 > output c0 of 0, raw 0 (c0) of 0, "
            "completes\n"
            "  1  reduce raw 1 (c1) of 0, input c1 of 1 > output c1 of 1, raw 1 (c1) of 1, "
            "completes\n"
            "sync\n"
            "  0  copy raw 1 (c1) of 1 > output c1 of 0\n"
            "  1  copy raw 0 (c0) of 0 > output c0 of 1\n");
}

TEST(Print, TheSameSlotOfConsecutiveRanksIsOneItem) {
  const auto schedules = all_ranks(Collective::all_reduce, Access::mapped, "direct_mapped", 3);
  EXPECT_EQ(print(schedules[1], schedules[1].steps[1]),
            "reduce input c1 of 0-2 > output c1 of 1-2, output c1 of 0, completes");
}

TEST(Print, SaysWhereTheRootIs) {
  const Algorithm* reduce = find_algorithm(Collective::reduce, Access::messages, "binomial_tree");
  EXPECT_EQ(print(reduce->build_all(6, 3)),
            "reduce by binomial_tree to 3 on 6 ranks: messages, canonical order, 1 chunk, "
            "1 raw slot, 1 partial slot\n"
            "step 0   1>0 c0   2>3 c0   5>4 c0\n"
            "step 1   0>3 partial c0   4>3 partial c0\n");
  EXPECT_EQ(print(all_ranks(Collective::scatter, Access::mapped, "staged_mapped", 3)),
            "scatter by staged_mapped from 0 on 3 ranks: mapped, no order, 3 chunks, 1 raw slot, "
            "0 partial slots\n"
            "  0  copy input c1 of 0 > raw 0 (c1) of 1\n"
            "  0  copy input c2 of 0 > raw 0 (c2) of 2\n"
            "sync\n"
            "  0  copy input c0 of 0 > output c0 of 0\n"
            "  1  copy raw 0 (c1) of 1 > output c1 of 1\n"
            "  2  copy raw 0 (c2) of 2 > output c2 of 2\n");
}

// A wrong schedule is the one that people most want to look at.
TEST(Print, MessagesThatCanNeverEndAreShown) {
  auto schedules = all_ranks(Collective::broadcast, Access::messages, "binomial_tree", 2);
  schedules[1].steps.clear();
  EXPECT_EQ(print(schedules),
            "broadcast by binomial_tree from 0 on 2 ranks: messages, no order, 1 chunk, "
            "0 raw slots, 0 partial slots\n"
            "never    0>1 c0\n");
}

}  // namespace
}  // namespace stretto::schedule

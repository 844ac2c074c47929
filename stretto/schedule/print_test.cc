// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/print.h"

#include <vector>

#include <gtest/gtest.h>

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {
namespace {

std::vector<Schedule> all_ranks(Collective collective, Access access, std::string_view name,
                                int n) {
  const Algorithm* algorithm = find_algorithm(collective, access, name);
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < n; ++rank) schedules.push_back(algorithm->build({rank, n, 0}));
  return schedules;
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
  EXPECT_NE(text.find("step 0   0>1 signal   1>2 signal   2>3 signal   3>4 signal   4>5 signal   "
                      "5>6 signal   6>7 signal\n         7>0 signal\n"),
            std::string::npos)
      << text;
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
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 6; ++rank) schedules.push_back(reduce->build({rank, 6, 3}));
  EXPECT_EQ(print(schedules),
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

// A schedule that is not right is what one most wants to look at.
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

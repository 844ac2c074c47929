// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/builder.h"

#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/schedule/print.h"

namespace stretto::schedule {
namespace {

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

}  // namespace
}  // namespace stretto::schedule

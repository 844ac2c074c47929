// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/clock.h"

#include <gtest/gtest.h>

namespace stretto {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(DeadlineTest, NeverByDefault) {
  const Deadline never;
  EXPECT_FALSE(never.passed());
  EXPECT_GT(never.remaining(), hours(24 * 365));
}

TEST(DeadlineTest, PassesWhenItsTimeHasCome) {
  EXPECT_TRUE(Deadline(Clock::now()).passed());
  EXPECT_TRUE(Deadline::after(milliseconds(-5)).passed());
  EXPECT_EQ(Deadline::after(milliseconds(-5)).remaining(), Duration::zero());
}

TEST(DeadlineTest, CountsDown) {
  const Deadline deadline = Deadline::after(hours(1));
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(deadline.remaining(), hours(1));
  EXPECT_GT(deadline.remaining(), hours(1) - std::chrono::minutes(1));
}

TEST(DeadlineTest, KnowsWhenItWasSet) {
  const TimePoint before = Clock::now();
  const Deadline deadline = Deadline::after(std::chrono::hours(1));
  EXPECT_GE(deadline.set_at(), before);
  EXPECT_EQ(deadline.time() - deadline.set_at(), std::chrono::hours(1));
  EXPECT_EQ(Deadline(before).set_at(), before);
}

TEST(DeadlineTest, ADurationThatOverflowsTheClockMeansNever) {
  EXPECT_EQ(Deadline::after(Duration::max()).time(), TimePoint::max());
  EXPECT_FALSE(Deadline::after(Duration::max()).passed());
}

TEST(ClockTest, Seconds) { EXPECT_DOUBLE_EQ(seconds(milliseconds(1500)), 1.5); }

}  // namespace
}  // namespace stretto

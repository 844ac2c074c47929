// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/random.h"

#include <gtest/gtest.h>

namespace stretto {
namespace {

// The published sequence of SplitMix64: a seed in a bug report must mean the same for ever.
TEST(RandomTest, GoldenValues) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
  EXPECT_EQ(random.next(), 4593380528125082431u);
  EXPECT_EQ(random.next(), 16408922859458223821u);
}

TEST(RandomTest, StaysBelowItsBoundAndReachesEveryNumber) {
  Random random(1);
  unsigned seen = 0;
  for (int draw = 0; draw < 200; ++draw) {
    const std::uint64_t number = random.below(7);
    ASSERT_LT(number, 7u);
    seen |= 1u << number;
  }
  EXPECT_EQ(seen, 0x7fu);
}

TEST(RandomTest, UniformIsBetweenZeroAndOne) {
  Random random(2);
  double sum = 0;
  for (int draw = 0; draw < 10000; ++draw) {
    const double number = random.uniform();
    ASSERT_GE(number, 0.0);
    ASSERT_LT(number, 1.0);
    sum += number;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

}  // namespace
}  // namespace stretto

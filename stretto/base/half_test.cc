// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stretto {
namespace {

TEST(HalfTest, IsMadeOfANumberAndNotOfItsBits) {
  EXPECT_EQ(Half(2.0f).bits, 0x4000);
  EXPECT_EQ(Half(-1.5f).bits, 0xbe00);
  EXPECT_EQ(static_cast<float>(Half::from_bits(0x3c00)), 1.0f);
  EXPECT_EQ(BFloat16(2.0f).bits, 0x4000);
  EXPECT_EQ(BFloat16(-3.0f).bits, 0xc040);
  EXPECT_EQ(static_cast<float>(BFloat16::from_bits(0x3f80)), 1.0f);
}

TEST(HalfTest, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(1e9f).bits, 0x7c00);
  EXPECT_EQ(Half(-infinity).bits, 0xfc00);
  EXPECT_EQ(Half(0x1p-24f).bits, 1);
  EXPECT_EQ(Half(0x1p-25f).bits, 0);
  EXPECT_EQ(Half(0x1.002p-25f).bits, 1);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::nanf("")))));
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
}

// Every finite number survives, and what lies between two of them goes to the nearer one.
template <class Number>
void check_all(std::uint16_t end) {
  for (std::uint16_t bits = 0; bits < end; ++bits) {
    const auto value = static_cast<float>(Number::from_bits(bits));
    ASSERT_EQ(Number(value).bits, bits);
    ASSERT_EQ(Number(-value).bits, bits | 0x8000);
    if (bits + 1 == end) break;
    const auto next = static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(bits + 1)));
    const float middle = value + (next - value) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Number(middle).bits, even) << bits;
    ASSERT_EQ(Number(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(Number(std::nextafter(middle, next)).bits, bits + 1);
  }
}

TEST(HalfTest, RoundsToTheNearest) {
  check_all<Half>(0x7c00);
  check_all<BFloat16>(0x7f80);
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/fixed_point.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/kernel/reduce.h"

namespace stretto::kernel {
namespace {

// The value of a pair, and a float rounded to nearest even, in units of 2^-61.
__int128 exact(std::int64_t high, std::int64_t low) {
  return (static_cast<__int128>(high) << 43) + low;
}
__int128 exact(float value) {
  const double high = std::nearbyint(static_cast<double>(value) * 0x1p18);
  const double low = (static_cast<double>(value) * 0x1p18 - high) * 0x1p43;
  return exact(static_cast<std::int64_t>(high), std::llrint(low));
}

// Draws a value of any magnitude below the limit, including zero and denormals.
float any_value(Random& random) {
  for (;;) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (std::abs(value) < kFixedPointLimit) return value;  // False for NaN.
  }
}

class FixedPoint : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(use_target(GetParam()).ok()); }
  void TearDown() override { EXPECT_TRUE(use_target({}).ok()); }
};
INSTANTIATE_TEST_SUITE_P(Targets, FixedPoint, ::testing::ValuesIn(available_targets()),
                         [](const auto& target) { return std::string(target.param); });

TEST_P(FixedPoint, AddsExactly) {
  Random random(3);
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<std::int64_t> high(count), low(count);
    std::vector<__int128> expected(count);
    for (int addend = 0; addend < 50; ++addend) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = any_value(random);
        expected[i] += exact(values[i]);
      }
      ASSERT_TRUE(add_fixed_point(values.data(), count, high.data(), low.data()));
    }
    std::vector<float> sums(count);
    from_fixed_point(high.data(), low.data(), count, 0.25, sums.data());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(exact(high[i], low[i]) == expected[i]) << count << ", " << i;
      const auto sum = static_cast<float>(static_cast<long double>(expected[i]) * 0x1p-63L);
      EXPECT_LE(std::abs(sums[i] - sum), std::abs(sum) * 0x1p-23f) << count << ", " << i;
    }
  }
}

TEST_P(FixedPoint, ValuesOfAbove2ToTheMinus37AreExact) {
  Random random(4);
  for (int i = 0; i < 1000; ++i) {
    float value = any_value(random);
    if (std::abs(value) < 0x1p-37f) value = 0x1.fffffep-37f;
    std::int64_t high = 0, low = 0;
    float found = 0;
    ASSERT_TRUE(add_fixed_point(&value, 1, &high, &low));
    from_fixed_point(&high, &low, 1, 1, &found);
    ASSERT_EQ(found, value);
  }
}

// Covers pairs whose two halves nearly cancel, and halves of any magnitude.
TEST_P(FixedPoint, APairIsRoundedOnceToF64) {
  Random random(6);
  for (int i = 0; i < 100'000; ++i) {
    const auto drawn = [&](int bits) {  // A number of fewer than `bits` bits.
      const std::uint64_t kept = random.below(static_cast<std::uint64_t>(bits));
      const auto magnitude = static_cast<std::int64_t>(random.next() >> (63 - kept) >> 1);
      return random.below(2) == 0 ? magnitude : -magnitude;
    };
    const bool cancels = random.below(2) == 0;
    const std::int64_t high = drawn(cancels ? 19 : 62);
    const std::int64_t low = cancels ? drawn(61) - high * (std::int64_t{1} << 43) : drawn(62);
    const double expected = static_cast<double>(exact(high, low)) * 0x1p-61;
    float found = 0;
    from_fixed_point(&high, &low, 1, 1, &found);
    ASSERT_EQ(found, static_cast<float>(expected)) << high << ", " << low;
  }
}

TEST_P(FixedPoint, SaysWhatHasNoPair) {
  for (const float value : {kFixedPointLimit, -kFixedPointLimit, std::nanf(""),
                            -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t count : {1, 9, 64}) {
      for (std::size_t at = 0; at < count; ++at) {
        std::vector<float> values(count, 0x1.fffffep23f);
        std::vector<std::int64_t> high(count), low(count);
        EXPECT_TRUE(add_fixed_point(values.data(), count, high.data(), low.data()));
        values[at] = value;
        // Repeats the call, because values that have no pair must not make a sum overflow.
        for (int i = 0; i < 5; ++i) {
          EXPECT_FALSE(add_fixed_point(values.data(), count, high.data(), low.data())) << at;
        }
      }
    }
  }
}

// As many addends as are allowed, all of the greatest magnitude.
TEST_P(FixedPoint, AMillionAddendsDoNotOverflow) {
  const float value = -0x1.fffffep23f;
  std::int64_t high = 0, low = 0;
  for (int i = 0; i < 1 << 20; ++i) ASSERT_TRUE(add_fixed_point(&value, 1, &high, &low));
  float mean = 0;
  from_fixed_point(&high, &low, 1, 0x1p-20, &mean);
  EXPECT_EQ(mean, value);
}

}  // namespace
}  // namespace stretto::kernel

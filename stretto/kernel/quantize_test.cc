// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/half.h"
#include "stretto/base/random.h"
#include "stretto/kernel/reduce.h"

namespace stretto::kernel {
namespace {

// Draws any floats, and many that half precision can represent.
std::vector<float> values_of(std::size_t count) {
  Random random(count);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.uniform() - 0.5) * static_cast<float>(1 << random.below(20));
    if (random.below(4) == 0) {
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    }
  }
  return values;
}

class Quantize : public ::testing::Test {
 protected:
  ~Quantize() override { EXPECT_TRUE(use_target("").ok()); }

  template <class Body>
  void on_all_targets(const Body& body) {
    for (const std::string_view target : available_targets()) {
      SCOPED_TRACE(target);
      ASSERT_TRUE(use_target(target).ok());
      for (const std::size_t length : {0, 1, 3, 15, 16, 17, 33, 255, 256, 257, 511, 513, 1100}) {
        SCOPED_TRACE(length);
        body(values_of(length));
      }
    }
  }
};

void expect_equal(float found, float expected, float of) {
  EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
      << found << " instead of " << expected << ", of " << of;
}

template <class Number>
void expect_halves(const std::vector<float>& values, float limit) {
  std::vector<float> rest = values, sums(values.size(), 0.25f);
  std::vector<std::uint16_t> codes(values.size());
  quantize_half(dtype_of<Number>, rest, limit, codes);
  add_half(dtype_of<Number>, codes, sums);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float allowed =
        std::isfinite(values[i]) ? std::clamp(values[i], -limit, limit) : values[i];
    const auto expected = static_cast<float>(Number(allowed));
    expect_equal(static_cast<float>(Number::from_bits(codes[i])), expected, values[i]);
    expect_equal(rest[i], values[i] - expected, values[i]);
    expect_equal(sums[i], 0.25f + expected, values[i]);
  }
}

TEST_F(Quantize, HalvesAreTheNearestOnEveryTarget) {
  on_all_targets([](const std::vector<float>& values) {
    for (const float limit : {65504.0f, 2.0f}) {
      expect_halves<Half>(values, limit);
      expect_halves<BFloat16>(values, limit);
    }
    expect_halves<BFloat16>(values, 0x1.FEp127f);
  });
}

// Returns what is left of the values, followed by the sums to which the message was added.
std::vector<float> by_int8(std::vector<float> values, bool stochastic) {
  std::vector<float> sums(values.size(), 1.0f);
  std::vector<std::int8_t> codes(values.size());
  std::vector<std::uint8_t> scales(int8_blocks(values.size()));
  quantize_int8(values, {.stochastic = stochastic, .key = 7}, codes, scales);
  add_int8(codes, scales, sums);
  values.insert(values.end(), sums.begin(), sums.end());
  return values;
}

std::vector<float> by_one_bit(std::vector<float> values, bool stochastic) {
  std::vector<float> sums(values.size(), 1.0f);
  std::vector<std::uint64_t> signs(one_bit_words(values.size()));
  std::vector<float> scales(one_bit_blocks(values.size()));
  quantize_one_bit(values, {.stochastic = stochastic, .key = 7}, signs, scales);
  add_one_bit(signs, scales, sums);
  values.insert(values.end(), sums.begin(), sums.end());
  return values;
}

TEST_F(Quantize, BytesAndBitsAreThoseOfTheFirstTarget) {
  std::map<std::pair<std::size_t, int>, std::vector<float>> of_first;  // Keys: length and way.
  on_all_targets([&](const std::vector<float>& values) {
    std::vector<float> finite = values;
    for (float& value : finite) value = std::abs(value) < 1e30f ? value : 1.0f;
    int way = 0;
    for (const std::vector<float>& input : {values, finite}) {
      for (const bool stochastic : {false, true}) {
        for (const auto& quantize : {by_int8, by_one_bit}) {
          const std::vector<float> found = quantize(input, stochastic);
          const auto& expected = of_first.try_emplace({input.size(), way++}, found).first->second;
          for (std::size_t i = 0; i < found.size(); ++i) {
            expect_equal(found[i], expected[i], input[i % input.size()]);
          }
        }
      }
    }
  });
}

// Compares with the definition, computed in f64.
TEST_F(Quantize, CodesOfInt8AreTheNearestAndScalesThePowersOfTwoThatFit) {
  on_all_targets([](const std::vector<float>& values) {
    std::vector<float> rest = values;
    std::vector<std::int8_t> codes(values.size());
    std::vector<std::uint8_t> scales(int8_blocks(values.size()));
    quantize_int8(rest, {}, codes, scales);
    for (std::size_t block = 0; block < scales.size(); ++block) {
      const double scale = std::ldexp(1.0, scales[block] - 127);
      double greatest = 0;
      const std::size_t end = std::min(values.size(), (block + 1) * kInt8Block);
      for (std::size_t i = block * kInt8Block; i < end; ++i) {
        const bool is_finite = std::isfinite(values[i]);
        const double nearest = std::clamp(std::nearbyint(values[i] / scale), -127.0, 127.0);
        ASSERT_EQ(codes[i], is_finite ? nearest : -128) << values[i] << " of scale " << scale;
        if (is_finite) greatest = std::max(greatest, std::abs(double{values[i]}));
      }
      EXPECT_LT(greatest, 128 * scale);
      if (scales[block] > 1) {
        EXPECT_GE(greatest, 64 * scale);
      }
    }
  });
}

// The values are of similar size: among arbitrary floats, one would be nearly the whole sum of its
// block.
TEST_F(Quantize, ScalesOfOneBitAreTheMeanMagnitudes) {
  on_all_targets([](const std::vector<float>& any) {
    Random random(any.size());
    std::vector<float> values(any.size());
    for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
    std::vector<float> rest = values, scales(one_bit_blocks(values.size()));
    std::vector<std::uint64_t> signs(one_bit_words(values.size()));
    quantize_one_bit(rest, {}, signs, scales);
    for (std::size_t block = 0; block < scales.size(); ++block) {
      const std::size_t first = block * kOneBitBlock;
      const std::size_t end = std::min(values.size(), first + kOneBitBlock);
      double sum = 0;
      for (std::size_t i = first; i < end; ++i) sum += std::abs(double{values[i]});
      const double mean = sum / static_cast<double>(end - first);
      EXPECT_NEAR(scales[block], mean, 1e-5 * mean) << "block " << block;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(signs[i / 64] >> (i % 64) & 1, values[i] < 0 ? 1u : 0u) << i;
    }
  });
}

// Whole numbers are exact whatever is drawn. There are so many draws that some are next to 1.
TEST_F(Quantize, WholeNumbersStayWhatTheyAre) {
  std::vector<float> values(kInt8Block, 100.0f);
  for (std::size_t i = 1; i < kInt8Block; i += 2) values[i] = -100;
  values[5] = 127;  // This makes the scale 1.
  std::vector<std::int8_t> codes(kInt8Block);
  std::vector<std::uint8_t> scales(1);
  for (const std::string_view target : available_targets()) {
    ASSERT_TRUE(use_target(target).ok());
    Random keys(1);
    for (int draw = 0; draw < (1 << 14); ++draw) {
      std::vector<float> rest = values;
      quantize_int8(rest, {.stochastic = true, .key = keys.next()}, codes, scales);
      ASSERT_EQ(rest, std::vector<float>(kInt8Block)) << target << ", " << draw;
    }
  }
}

// The first draw of key 0 is 0.
TEST_F(Quantize, TheOppositeOfTheGreatestIsNegativeWhateverIsDrawn) {
  for (const std::string_view target : available_targets()) {
    ASSERT_TRUE(use_target(target).ok());
    std::vector<float> values = {-3, 3}, scales(1);
    std::vector<std::uint64_t> signs(1);
    quantize_one_bit(values, {.stochastic = true, .key = 0}, signs, scales);
    EXPECT_EQ(signs[0], 1u) << target;
    EXPECT_EQ(scales[0], 3.0f) << target;
  }
}

}  // namespace
}  // namespace stretto::kernel

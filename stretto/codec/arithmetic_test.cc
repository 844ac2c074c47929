// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include <complex>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/codec/low_rank.h"

namespace stretto {
namespace {

TEST(Arithmetic, MultipliesRealAndComplexNumbers) {
  std::vector<BFloat16> halves(101, BFloat16(3.0f));
  std::vector<std::complex<double>> complex(2001, {3, -6});
  codec::multiply(as_output(halves), 1.0 / 3);
  codec::multiply(as_output(complex), 0.1);
  for (const BFloat16 half : halves) EXPECT_EQ(half, BFloat16(3.0f * (1.0f / 3)));
  for (const auto& number : complex) EXPECT_EQ(number, std::complex(3 * 0.1, -6 * 0.1));
}

TEST(Arithmetic, Divides) {
  std::vector<float> values(101, 7.0f);
  codec::divide(values, 3);
  for (const float value : values) EXPECT_EQ(value, 7.0f / 3.0f);
}

// An instruction for both rounds once, and not all processors have it.
TEST(Arithmetic, ProductsAreRoundedBeforeTheyAreAdded) {
  constexpr std::size_t kCount = 13;  // Vectors, and a rest.
  constexpr float kFactor = 1 + 0x1p-12f;
  std::vector<float> sums(kCount, -1 - 0x1p-11f);  // The square of the factor, but for 2^-24.
  codec::add_product(sums, {1, kCount}, 1, std::vector(1, kFactor), std::vector(kCount, kFactor),
                     1);
  EXPECT_EQ(sums, std::vector<float>(kCount));
}

}  // namespace
}  // namespace stretto

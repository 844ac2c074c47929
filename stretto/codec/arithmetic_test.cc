// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include <complex>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
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

// A fused multiply-add rounds once, and not all processors have it: the product is rounded first.
TEST(Arithmetic, ProductsAreRoundedBeforeTheyAreAdded) {
  constexpr std::size_t kCount = 13;  // Several vectors, and a remainder.
  constexpr float kFactor = 1 + 0x1p-12f;
  std::vector<float> sums(kCount, -1 - 0x1p-11f);  // The square of `kFactor`, less 2^-24.
  codec::add_product(sums, {1, kCount}, 1, std::vector(1, kFactor), std::vector(kCount, kFactor),
                     1);
  EXPECT_EQ(sums, std::vector<float>(kCount));
}

// With a matrix of rank 1, all columns of `left` are multiples of one column, but for the rounding
// of long sums.
TEST(Orthonormalize, FactorsOfAMatrixOfLowerRankAreOrthogonalAndSayAllOfIt) {
  constexpr std::size_t kRank = 4;
  constexpr codec::MatrixShape kShape{40, 2000};
  Random random(5);
  const auto drawn = [&](std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
    return values;
  };
  for (int draw = 0; draw < 20; ++draw) {
    std::vector<float> matrix(kShape.rows * kShape.columns);
    codec::add_product(matrix, kShape, 1, drawn(kShape.rows), drawn(kShape.columns), 1);
    std::vector<float> left(kShape.rows * kRank), right(kShape.columns * kRank);
    codec::multiply(matrix, kShape, kRank, drawn(right.size()), left);
    codec::orthonormalize(kShape.rows, kRank, left);
    for (std::size_t a = 0; a < kRank; ++a) {
      for (std::size_t b = 0; b <= a; ++b) {
        double product = 0;
        for (std::size_t row = 0; row < kShape.rows; ++row) {
          product += double{left[row * kRank + a]} * double{left[row * kRank + b]};
        }
        const bool is_zero = a == b && a > 0 && product == 0;
        EXPECT_NEAR(product, a == b && !is_zero ? 1 : 0, 1e-5) << draw << ": " << a << ", " << b;
      }
    }
    codec::multiply_transposed(matrix, kShape, kRank, left, right);
    codec::add_product(matrix, kShape, kRank, left, right, -1);
    for (const float rest : matrix) ASSERT_NEAR(rest, 0, 1e-5) << draw;
  }
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/codec/compressor.h"

namespace stretto::codec {
namespace {

// Vectors of four numbers, as the compiler provides them. They exist on every processor, so all
// ranks add in the same order. Products and sums are not fused on any processor (-ffp-contract), so
// all ranks round alike.
using Vector = float __attribute__((vector_size(16)));
constexpr std::size_t kLanes = sizeof(Vector) / sizeof(float);
constexpr std::size_t kStep = 2 * kLanes;

Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

float dot(const float* a, const float* b, std::size_t count) {
  Vector even = {}, odd = {};
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    even += load(a + i) * load(b + i);
    odd += load(a + i + kLanes) * load(b + i + kLanes);
  }
  even += odd;
  float sum = (even[0] + even[1]) + (even[2] + even[3]);
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float* to, const float* from, float factor, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector sum = load(to + i) + factor * load(from + i);
    std::memcpy(to + i, &sum, sizeof(sum));
  }
  for (; i < count; ++i) to[i] += factor * from[i];
}

std::size_t row_length(std::size_t count, MatrixShape shape, std::size_t row) {
  const std::size_t first = row * shape.columns;
  return first >= count ? 0 : std::min(shape.columns, count - first);
}

}  // namespace

MatrixShape matrix_shape(std::size_t count, std::size_t rows) {
  if (count == 0) return {};
  if (rows == 0 || count % rows != 0) {
    rows = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  }
  return {rows, (count + rows - 1) / rows};
}

void multiply(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
              std::span<const float> right, std::span<float> left) {
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const float* const values = matrix.data() + row * shape.columns;
    const std::size_t length = row_length(matrix.size(), shape, row);
    for (std::size_t c = 0; c < rank; ++c) {
      left[row * rank + c] = dot(values, right.data() + c * shape.columns, length);
    }
  }
}

void multiply_transposed(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
                         std::span<const float> left, std::span<float> right) {
  std::ranges::fill(right, 0.0f);
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const float* const values = matrix.data() + row * shape.columns;
    const std::size_t length = row_length(matrix.size(), shape, row);
    for (std::size_t c = 0; c < rank; ++c) {
      add_scaled(right.data() + c * shape.columns, values, left[row * rank + c], length);
    }
  }
}

void orthonormalize(std::size_t rows, std::size_t rank, std::span<float> left) {
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      sum += double{left[row * rank + a]} * double{left[row * rank + b]};
    }
    return sum;
  };
  for (std::size_t c = 0; c < rank; ++c) {
    const double before = dot(c, c);
    // If most of a column cancels, rounding errors in the direction of the other columns are a
    // large part of the rest. A second pass removes them, and two passes are enough (Parlett, "The
    // Symmetric Eigenvalue Problem", 1980, after Kahan).
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < c; ++other) {
        const auto part = static_cast<float>(dot(c, other));
        for (std::size_t row = 0; row < rows; ++row) {
          left[row * rank + c] -= part * left[row * rank + other];
        }
      }
    }
    const double square = dot(c, c);
    // A smaller rest is rounding of this function. Errors that the column already had, as sums of
    // many products do, may be greater. They do no harm once orthogonal, and parts of a gradient
    // may be as small. NaN stays NaN, and infinity becomes NaN.
    const bool is_nothing = std::isfinite(square) && square <= before * 1e-12;
    const double factor = is_nothing ? 0 : 1 / std::sqrt(square);
    for (std::size_t row = 0; row < rows; ++row) {
      float& value = left[row * rank + c];
      value = is_nothing ? 0 : static_cast<float>(double{value} * factor);
    }
  }
}

void add_product(std::span<float> matrix, MatrixShape shape, std::size_t rank,
                 std::span<const float> left, std::span<const float> right, float factor) {
  for (std::size_t row = 0; row < shape.rows; ++row) {
    float* const values = matrix.data() + row * shape.columns;
    const std::size_t length = row_length(matrix.size(), shape, row);
    for (std::size_t c = 0; c < rank; ++c) {
      add_scaled(values, right.data() + c * shape.columns, factor * left[row * rank + c], length);
    }
  }
}

}  // namespace stretto::codec

namespace stretto {

PowerSgd::PowerSgd(std::size_t rank) : Compressor(fmt::format("power_sgd({})", rank)), rank_(rank) {
  if (rank == 0) refuse("power_sgd: the rank is 0; 1 is the least");
}

std::shared_ptr<const Compressor> power_sgd(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgd>(options.rank);
}

}  // namespace stretto

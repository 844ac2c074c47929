// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/low_rank.h"

#include <algorithm>
#include <cmath>

namespace stretto::codec {
namespace {

// Columns of the factors that are worked on at once, so that the compiler knows how many.
constexpr std::size_t kWidth = 4;

std::size_t row_length(std::size_t count, MatrixShape shape, std::size_t row) {
  const std::size_t first = row * shape.columns;
  return first >= count ? 0 : std::min(shape.columns, count - first);
}

struct Group {
  float at[kWidth] = {};
};

// `width` numbers of a row of a factor, and zeros.
Group load(const float* from, std::size_t width) {
  Group group;
  std::copy_n(from, width, group.at);
  return group;
}

template <class Function>
void for_groups(std::size_t rank, Function function) {
  for (std::size_t first = 0; first < rank; first += kWidth) {
    function(first, std::min(kWidth, rank - first));
  }
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
  for_groups(rank, [&](std::size_t first, std::size_t width) {
    for (std::size_t row = 0; row < shape.rows; ++row) {
      Group sum;
      const std::size_t length = row_length(matrix.size(), shape, row);
      const float* const values = matrix.data() + row * shape.columns;
      for (std::size_t column = 0; column < length; ++column) {
        const Group factor = load(&right[column * rank + first], width);
        for (std::size_t c = 0; c < kWidth; ++c) sum.at[c] += values[column] * factor.at[c];
      }
      std::copy_n(sum.at, width, &left[row * rank + first]);
    }
  });
}

void multiply_transposed(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
                         std::span<const float> left, std::span<float> right) {
  std::ranges::fill(right, 0.0f);
  for_groups(rank, [&](std::size_t first, std::size_t width) {
    for (std::size_t row = 0; row < shape.rows; ++row) {
      const Group factor = load(&left[row * rank + first], width);
      const std::size_t length = row_length(matrix.size(), shape, row);
      const float* const values = matrix.data() + row * shape.columns;
      for (std::size_t column = 0; column < length; ++column) {
        float* const sum = &right[column * rank + first];
        for (std::size_t c = 0; c < width; ++c) sum[c] += values[column] * factor.at[c];
      }
    }
  });
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
    for (std::size_t other = 0; other < c; ++other) {
      const auto part = static_cast<float>(dot(c, other));
      for (std::size_t row = 0; row < rows; ++row) {
        left[row * rank + c] -= part * left[row * rank + other];
      }
    }
    const double square = dot(c, c);
    // What is left of a column that depends on the others is rounding; NaN stays what it is.
    const bool is_nothing = square <= before * 1e-12;
    const double factor = is_nothing ? 0 : 1 / std::sqrt(square);
    for (std::size_t row = 0; row < rows; ++row) {
      float& value = left[row * rank + c];
      value = is_nothing ? 0 : static_cast<float>(double{value} * factor);
    }
  }
}

void add_product(std::span<float> matrix, MatrixShape shape, std::size_t rank,
                 std::span<const float> left, std::span<const float> right, float factor) {
  for_groups(rank, [&](std::size_t first, std::size_t width) {
    for (std::size_t row = 0; row < shape.rows; ++row) {
      Group of_row = load(&left[row * rank + first], width);
      for (float& value : of_row.at) value *= factor;
      const std::size_t length = row_length(matrix.size(), shape, row);
      float* const values = matrix.data() + row * shape.columns;
      for (std::size_t column = 0; column < length; ++column) {
        const Group of_column = load(&right[column * rank + first], width);
        float sum = 0;
        for (std::size_t c = 0; c < kWidth; ++c) sum += of_row.at[c] * of_column.at[c];
        values[column] += sum;
      }
    }
  });
}

}  // namespace stretto::codec

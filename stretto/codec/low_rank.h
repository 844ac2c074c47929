// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>

namespace stretto::codec {

// A vector that is treated as a matrix in row-major order. The last row may be shorter than the
// others.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
};
// Returns a shape with `rows` rows if they divide `count`; else a shape that is nearly a square.
MatrixShape matrix_shape(std::size_t count, std::size_t rows);

// The steps of PowerSGD (Vogels, Karimireddy, Jaggi, 2019). `left` has `rank` numbers for each row
// of the matrix, row by row. `right` has `rank` vectors, each with one number per column. Results
// have the same bits each time and on every processor.

// left = matrix * right.
void multiply(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
              std::span<const float> right, std::span<float> left);
// right = transposed matrix * left.
void multiply_transposed(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
                         std::span<const float> left, std::span<float> right);
// Makes the columns of `left` orthogonal and of length 1, by the Gram-Schmidt process. A column
// becomes zero if at most 1e-6 of its length remains after the columns before it are subtracted: so
// little is the rounding of f32.
void orthonormalize(std::size_t rows, std::size_t rank, std::span<float> left);
// matrix += factor * left * transposed right.
void add_product(std::span<float> matrix, MatrixShape shape, std::size_t rank,
                 std::span<const float> left, std::span<const float> right, float factor);

}  // namespace stretto::codec

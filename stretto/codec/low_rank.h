// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>

namespace stretto::codec {

// A vector seen as a matrix, row after row; the last row may be shorter than the others.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
};
// Has `rows` rows if they divide `count`; else it is nearly a square.
MatrixShape matrix_shape(std::size_t count, std::size_t rows);

// The steps of PowerSGD (Vogels, Karimireddy, Jaggi, 2019). `left` has `rank` numbers for each row
// of the matrix, one behind the other; `right` has `rank` vectors of a number for each column. Same
// bits each time, on every processor.

// left = matrix * right.
void multiply(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
              std::span<const float> right, std::span<float> left);
// right = transposed matrix * left.
void multiply_transposed(std::span<const float> matrix, MatrixShape shape, std::size_t rank,
                         std::span<const float> left, std::span<float> right);
// Makes the columns of `left` orthogonal and of length 1, by Gram and Schmidt. A column becomes
// zero if those before it leave less than 1e-6 of its length, which is the rounding of f32.
void orthonormalize(std::size_t rows, std::size_t rank, std::span<float> left);
// matrix += factor * left * transposed right.
void add_product(std::span<float> matrix, MatrixShape shape, std::size_t rank,
                 std::span<const float> left, std::span<const float> right, float factor);

}  // namespace stretto::codec

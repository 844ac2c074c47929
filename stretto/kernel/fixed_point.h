// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

// Represents numbers as pairs of integers: high * 2^-18 + low * 2^-61. Sums of integers are exact,
// so the sum of numbers has the same bits for any order and grouping. Never blocks; any thread.
namespace stretto::kernel {

// Only numbers below this magnitude can be represented. Up to 2^20 of them can be added.
inline constexpr float kFixedPointLimit = 0x1p24f;

// Adds each of `count` values to its pair. Each value is first rounded to a multiple of 2^-61, to
// nearest, ties to even; values of magnitude 2^-37 and above are exact. Returns false if some
// values are not finite or too large; these are left out.
bool add_fixed_point(const float* values, std::size_t count, std::int64_t* high, std::int64_t* low);

// Converts each pair to f64, with rounding, multiplies it by `factor`, and rounds it to f32.
void from_fixed_point(const std::int64_t* high, const std::int64_t* low, std::size_t count,
                      double factor, float* values);

}  // namespace stretto::kernel

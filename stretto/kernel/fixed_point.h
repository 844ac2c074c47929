// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

// Numbers as pairs of integers, high * 2^-18 + low * 2^-61. Sums of integers are exact, so a sum of
// numbers has the same bits in whatever order and groups they are added. Never blocks; any thread.
namespace stretto::kernel {

// Numbers of this magnitude and above have no pair. Pairs of 2^20 numbers can be added.
inline constexpr float kFixedPointLimit = 0x1p24f;

// Adds `count` values to as many pairs. What is finer than 2^-61 is rounded to it, to the nearest
// and of two to the even one, each value by itself; values of 2^-37 and above are exact. Returns
// false if values are not finite or too great, which are left out.
bool add_fixed_point(const float* values, std::size_t count, std::int64_t* high, std::int64_t* low);

// What the pairs say, rounded to f64, times `factor`, and rounded to f32.
void from_fixed_point(const std::int64_t* high, const std::int64_t* low, std::size_t count,
                      double factor, float* values);

}  // namespace stretto::kernel

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "stretto/base/half.h"
#include "stretto/base/view.h"

namespace stretto::codec {

// The greatest finite number of the type Number, which is Half or BFloat16.
template <class Number>
float greatest_number() {
  const Number infinity(std::numeric_limits<float>::infinity());
  return static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(infinity.bits - 1)));
}

// Converts a vector between f32 and f16 or bf16, at the speed of memory. Rounds to nearest, ties to
// even; NaN stays NaN. The views must have the same length and must not overlap.
void convert(const View& to, const ConstView& from);

// values[i] *= factor, rounded once. For floating-point and complex values.
void multiply(const View& values, double factor);
// values[i] /= divisor, rounded once.
void divide(std::span<float> values, int divisor);

}  // namespace stretto::codec

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

// The greatest that is finite. Number is Half or BFloat16.
template <class Number>
float greatest_number() {
  const Number infinity(std::numeric_limits<float>::infinity());
  return static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(infinity.bits - 1)));
}

// A cast of a whole vector at the speed of memory, between f32 and f16 or bf16. To nearest, ties to
// even; NaN stays NaN. The views have the same length and do not overlap.
void convert(const View& to, const ConstView& from);

// values[i] *= factor, rounded once; of floating-point and complex numbers.
void multiply(const View& values, double factor);
// values[i] /= divisor, rounded once.
void divide(std::span<float> values, int divisor);

}  // namespace stretto::codec

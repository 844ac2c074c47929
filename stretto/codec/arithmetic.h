// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>

#include "stretto/base/half.h"

namespace stretto::codec {

// Casts of whole vectors at the speed of memory; Number is Half or BFloat16. To nearest, ties to
// even; NaN stays NaN. Spans of one call have the same length and do not overlap.
template <class Number>
void narrow(std::span<const float> from, std::span<Number> to);
template <class Number>
void widen(std::span<const Number> from, std::span<float> to);

// values[i] /= divisor, rounded once.
void divide(std::span<float> values, int divisor);

}  // namespace stretto::codec

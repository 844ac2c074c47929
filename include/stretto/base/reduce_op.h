// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/base/dtype.h"

namespace stretto {

// How elements of several ranks are combined. The numbers travel between ranks: append, never
// reorder.
//
// Floating point follows IEEE 754: NaN and infinity propagate, in min and max too. Integer sums and
// products wrap. An integer mean is the wrapped sum divided by the number of ranks, rounded towards
// zero. For bool, sum and max are "or", product and min are "and".
//
// A complex sum or mean is taken of real and imaginary parts separately. A complex product is the
// textbook formula, (ac - bd) + (ad + bc)i, with every operation rounded by itself: unlike in Annex
// G of the C standard, a factor with an infinite and a NaN part makes NaN.
enum class ReduceOp : std::uint8_t { sum, mean, product, min, max, bit_and, bit_or, bit_xor };

inline constexpr int kReduceOpCount = 8;

std::string_view name(ReduceOp op);

// Whether `op` has a meaning for `dtype`: bitwise operations need integers or bool; a mean needs
// numbers; min and max need an order, which complex numbers do not have. f8_e4m3 and f8_e5m2
// support nothing: they can only be moved.
bool supports(ReduceOp op, DType dtype);

// "sum, product, min, max": the operations that `dtype` supports, for error messages. Where there
// are none: "none (f8_e4m3 cannot be reduced; u8, i8, ... can)", with all dtypes that can.
std::string supported_ops(DType dtype);

}  // namespace stretto

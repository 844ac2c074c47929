// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

// What reduce() promises, one number at a time and without bit tricks: for tests only.
namespace stretto::kernel::oracle {

template <class Float>
Float quiet(Float value) {
  using Bits = std::conditional_t<sizeof(Float) == 4, std::uint32_t, std::uint64_t>;
  const Bits quiet_bit = Bits{1} << (std::numeric_limits<Float>::digits - 2);
  return std::bit_cast<Float>(std::bit_cast<Bits>(value) | quiet_bit);
}

// `value`, which is finite, rounded to a multiple of a power of two: to a number with `digits`
// binary digits whose exponent is at least `least_exponent`.
inline double round_to(double value, int digits, int least_exponent) {
  const int exponent = value == 0 ? least_exponent : std::max(std::ilogb(value), least_exponent);
  const double unit = std::ldexp(1.0, exponent - (digits - 1));
  return std::nearbyint(value / unit) * unit;
}

inline float widen(Half half) {
  const std::uint32_t sign = half.bits >> 15, exponent = half.bits >> 10 & 31;
  const std::uint32_t fraction = half.bits & 1023;
  if (exponent == 31) {
    const auto value = std::bit_cast<float>(sign << 31 | 0xFFu << 23 | fraction << 13);
    return fraction == 0 ? value : quiet(value);
  }
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction),
                                                     static_cast<int>(exponent) - 25);
  return sign != 0 ? -magnitude : magnitude;
}

inline float widen(BFloat16 number) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

inline Half narrow_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 15;
  if (std::isnan(value))
    return Half::from_bits(static_cast<std::uint16_t>(sign | 0x7E00 | (bits >> 13 & 1023)));
  const double rounded = std::isinf(value) ? INFINITY : round_to(std::fabs(value), 11, -14);
  if (rounded > 65504) return Half::from_bits(static_cast<std::uint16_t>(sign | 0x7C00));
  if (rounded < 0x1p-14)
    return Half::from_bits(static_cast<std::uint16_t>(sign | std::lrint(rounded * 0x1p24)));
  const int exponent = std::ilogb(rounded);
  const auto fraction = std::lrint(std::ldexp(rounded, 10 - exponent)) - 1024;
  return Half::from_bits(static_cast<std::uint16_t>(sign | (exponent + 15) << 10 | fraction));
}

inline BFloat16 narrow_to_bfloat16(float value) {
  if (std::isnan(value)) value = quiet(value);
  if (std::isfinite(value)) {
    const double rounded = round_to(value, 8, -126);
    const bool overflows = std::fabs(rounded) > std::numeric_limits<float>::max();
    value = overflows ? std::copysign(INFINITY, value) : static_cast<float>(rounded);
  }
  return BFloat16::from_bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
}

template <class T>
T combine(ReduceOp op, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool selects = op == ReduceOp::min || op == ReduceOp::max;
    if (std::isnan(left)) return selects ? left : quiet(left);
    if (std::isnan(right)) return selects ? right : quiet(right);
    if (op == ReduceOp::product) return left * right;
    if (op == ReduceOp::min) return left <= right ? left : right;
    if (op == ReduceOp::max) return left >= right ? left : right;
    return left + right;
  } else {
    using Wide = std::uint64_t;
    if (op == ReduceOp::product) return static_cast<T>(Wide(left) * Wide(right));
    if (op == ReduceOp::min) return left < right ? left : right;
    if (op == ReduceOp::max) return left > right ? left : right;
    if (op == ReduceOp::bit_and) return static_cast<T>(left & right);
    if (op == ReduceOp::bit_or) return static_cast<T>(left | right);
    if (op == ReduceOp::bit_xor) return static_cast<T>(left ^ right);
    return static_cast<T>(Wide(left) + Wide(right));
  }
}

// `left` plus or minus `right`, by the rule for NaN of a sum.
template <class Float>
Float add_or_subtract(Float left, Float right, bool subtract) {
  if (std::isnan(left)) return quiet(left);
  if (std::isnan(right)) return quiet(right);
  return subtract ? left - right : left + right;
}

template <class Float>
std::complex<Float> combine(ReduceOp op, std::complex<Float> left, std::complex<Float> right) {
  if (op != ReduceOp::product) {
    return {combine(op, left.real(), right.real()), combine(op, left.imag(), right.imag())};
  }
  // Volatile: else the compiler may round a product and a sum at once.
  const volatile Float ac = combine(op, left.real(), right.real());
  const volatile Float bd = combine(op, left.imag(), right.imag());
  const volatile Float ad = combine(op, left.real(), right.imag());
  const volatile Float bc = combine(op, left.imag(), right.real());
  return {add_or_subtract<Float>(ac, bd, true), add_or_subtract<Float>(ad, bc, false)};
}

inline bool combine(ReduceOp op, bool left, bool right) {
  if (op == ReduceOp::bit_xor) return left != right;
  const bool all = op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::bit_and;
  return all ? left && right : left || right;
}

template <class T>
T divide(T value, int divisor) {
  if (divisor == 1) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value) ? quiet(value) : value / static_cast<T>(divisor);
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(std::uint64_t{value} / static_cast<std::uint64_t>(divisor));
  } else {
    return static_cast<T>(std::int64_t{value} / divisor);
  }
}

template <class Float>
std::complex<Float> divide(std::complex<Float> value, int divisor) {
  return {divide(value.real(), divisor), divide(value.imag(), divisor)};
}

// The canonical tree over values[first, first + count).
template <class T>
T tree(ReduceOp op, const std::vector<T>& values, std::size_t first, std::size_t count) {
  if (count == 1) return values[first];
  const std::size_t half = std::bit_ceil(count) / 2;
  return combine(op, tree(op, values, first, half), tree(op, values, first + half, count - half));
}

}  // namespace stretto::kernel::oracle

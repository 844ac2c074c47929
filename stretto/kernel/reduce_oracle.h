// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/kernel/reduce.h"

// The results that reduce() promises, computed one number at a time and without bit tricks. For
// tests only: the single reference of all tests of reductions.
namespace stretto::kernel::oracle {

template <class Float>
Float quiet(Float value) {
  using Bits = std::conditional_t<sizeof(Float) == 4, std::uint32_t, std::uint64_t>;
  const Bits quiet_bit = Bits{1} << (std::numeric_limits<Float>::digits - 2);
  return std::bit_cast<Float>(std::bit_cast<Bits>(value) | quiet_bit);
}

// Rounds `value`, which must be finite, to a number with `digits` binary digits and an exponent of
// at least `least_exponent`.
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

// `left` plus or minus `right`, with the rule of sums for NaN.
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
  const Float ac = combine(op, left.real(), right.real());
  const Float bd = combine(op, left.imag(), right.imag());
  const Float ad = combine(op, left.real(), right.imag());
  const Float bc = combine(op, left.imag(), right.real());
  return {add_or_subtract(ac, bd, true), add_or_subtract(ad, bc, false)};
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

// Calls `visitor` with a zero of the C++ type of `dtype`. For 8-bit floats, which have no
// arithmetic, returns a default-constructed result instead.
template <class Visitor>
auto with_type(DType dtype, const Visitor& visitor) {
  switch (dtype) {
    case DType::u8:
      return visitor(std::uint8_t());
    case DType::i8:
      return visitor(std::int8_t());
    case DType::i16:
      return visitor(std::int16_t());
    case DType::u16:
      return visitor(std::uint16_t());
    case DType::i32:
      return visitor(std::int32_t());
    case DType::u32:
      return visitor(std::uint32_t());
    case DType::i64:
      return visitor(std::int64_t());
    case DType::u64:
      return visitor(std::uint64_t());
    case DType::f16:
      return visitor(Half());
    case DType::bf16:
      return visitor(BFloat16());
    case DType::f32:
      return visitor(float());
    case DType::f64:
      return visitor(double());
    case DType::boolean:
      return visitor(bool());
    case DType::c64:
      return visitor(std::complex<float>());
    case DType::c128:
      return visitor(std::complex<double>());
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return decltype(visitor(float()))();
}

template <class T>
T read(const void* elements, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(elements) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void write(std::byte* elements, std::size_t i, T value) {
  std::memcpy(elements + i * sizeof(T), &value, sizeof(T));
}

// T is the type of the reduction's dtype. The result has the type of its partial results.
template <class T>
auto widened(DType dtype, const void* elements, std::size_t i) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return dtype == DType::f32 ? read<float>(elements, i) : widen(read<T>(elements, i));
  } else {
    return read<T>(elements, i);
  }
}

template <class T, class Sum>
void write_narrowed(DType dtype, std::byte* elements, std::size_t i, Sum value) {
  if constexpr (std::is_same_v<T, Half>) {
    if (dtype == DType::f16) return write(elements, i, narrow_to_half(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if (dtype == DType::bf16) return write(elements, i, narrow_to_bfloat16(value));
  }
  write(elements, i, value);
}

// The bytes that reduce() must write into each output. The outputs of `what` are not used.
inline std::vector<std::byte> reduce(const Reduction& what) {
  std::vector<std::byte> result(what.count * size_bytes(what.output_dtype));
  const Input& first = what.inputs.front();
  if (what.inputs.size() == 1 && what.divisor == 1 && first.dtype == what.output_dtype) {
    if (!result.empty()) std::memcpy(result.data(), first.data, result.size());
    return result;
  }
  with_type(what.dtype, [&]<class T>(T) {
    std::vector<decltype(widened<T>(what.dtype, nullptr, 0))> values(what.inputs.size());
    for (std::size_t i = 0; i < what.count; ++i) {
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] = widened<T>(what.inputs[j].dtype, what.inputs[j].data, i);
      }
      const auto sum = tree(what.op, values, 0, values.size());
      write_narrowed<T>(what.output_dtype, result.data(), i, divide(sum, what.divisor));
    }
  });
  return result;
}

}  // namespace stretto::kernel::oracle

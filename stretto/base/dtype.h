// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace stretto {

// The type of one element of a buffer. The numbers travel between ranks: append, never reorder.
enum class DType : std::uint8_t { u8, i8, i32, i64, f16, bf16, f32, f64, boolean };

inline constexpr int kDTypeCount = 9;

// IEEE 754 binary16 and bfloat16 as they lie in memory. Arithmetic on them lives in kernel/.
struct Half {
  std::uint16_t bits = 0;
  friend bool operator==(Half, Half) = default;
};
struct BFloat16 {
  std::uint16_t bits = 0;
  friend bool operator==(BFloat16, BFloat16) = default;
};

std::size_t size_bytes(DType dtype);
std::string_view name(DType dtype);

// Reads a number that came from a peer. Empty if it names no dtype.
std::optional<DType> dtype_from_wire(std::uint8_t number);

bool is_floating_point(DType dtype);

// The type in which partial reductions of `dtype` are kept: f32 for f16 and bf16, else `dtype`.
DType accumulation_dtype(DType dtype);

template <class T>
struct DTypeOf;  // Undefined for types that stretto cannot move: a compile error names the type.
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::byte> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace stretto

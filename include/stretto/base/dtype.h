// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "stretto/base/half.h"

namespace stretto {

// The type of one element of a buffer; docs/dtypes.md says what each can do. The numbers travel
// between ranks: append, never reorder.
enum class DType : std::uint8_t {
  u8,
  i8,
  i32,
  i64,
  f16,
  bf16,
  f32,
  f64,
  boolean,
  i16,
  u16,
  u32,
  u64,
  c64,   // Complex: two f32, the real part first.
  c128,  // Complex: two f64.
  f8_e4m3,
  f8_e5m2,
};

inline constexpr int kDTypeCount = 17;

constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::boolean:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return 1;
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::u32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
    case DType::c64:
      return 8;
    case DType::c128:
      return 16;
  }
  return 0;
}

std::string_view name(DType dtype);

// Reads a number that came from a peer. Empty if it names no dtype.
std::optional<DType> dtype_from_wire(std::uint8_t number);

// Real floating point, 8 bits included; complex dtypes are not.
bool is_floating_point(DType dtype);
bool is_complex(DType dtype);

// The type in which partial reductions of `dtype` are kept: f32 for f16 and bf16, else `dtype`.
DType accumulation_dtype(DType dtype);

template <class T>
struct DTypeOf;  // Undefined for types that stretto cannot move: a compile error names the type.
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
template <>
struct DTypeOf<std::byte> : std::integral_constant<DType, DType::u8> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::i8> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<Half> : std::integral_constant<DType, DType::f16> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};
template <>
struct DTypeOf<std::int16_t> : std::integral_constant<DType, DType::i16> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::u16> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<DType, DType::u32> {};
template <>
struct DTypeOf<std::uint64_t> : std::integral_constant<DType, DType::u64> {};
template <>
struct DTypeOf<std::complex<float>> : std::integral_constant<DType, DType::c64> {};
template <>
struct DTypeOf<std::complex<double>> : std::integral_constant<DType, DType::c128> {};
template <>
struct DTypeOf<Float8E4M3> : std::integral_constant<DType, DType::f8_e4m3> {};
template <>
struct DTypeOf<Float8E5M2> : std::integral_constant<DType, DType::f8_e5m2> {};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace stretto

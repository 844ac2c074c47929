// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <utility>

#include <c10/core/ScalarType.h>

#include "stretto/base/dtype.h"

namespace stretto {

// Types of libtorch's and ours that have the same elements.
inline constexpr std::pair<c10::ScalarType, DType> kSameTypes[] = {
    {c10::kByte, DType::u8},
    {c10::kChar, DType::i8},
    {c10::kInt, DType::i32},
    {c10::kLong, DType::i64},
    {c10::kHalf, DType::f16},
    {c10::kBFloat16, DType::bf16},
    {c10::kFloat, DType::f32},
    {c10::kDouble, DType::f64},
    {c10::kBool, DType::boolean},
    {c10::kShort, DType::i16},
    {c10::kUInt16, DType::u16},
    {c10::kUInt32, DType::u32},
    {c10::kUInt64, DType::u64},
    {c10::kComplexFloat, DType::c64},
    {c10::kComplexDouble, DType::c128},
    {c10::kFloat8_e4m3fn, DType::f8_e4m3},
    {c10::kFloat8_e5m2, DType::f8_e5m2}};

// The type of stretto's; nothing if it has none.
inline std::optional<DType> dtype_of_scalar_type(c10::ScalarType type) {
  for (const auto& [torchs, ours] : kSameTypes) {
    if (torchs == type) return ours;
  }
  return std::nullopt;
}

inline c10::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [torchs, ours] : kSameTypes) {
    if (ours == dtype) return torchs;
  }
  return c10::ScalarType::Undefined;
}

}  // namespace stretto

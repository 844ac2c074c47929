// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <utility>

#include <c10/core/ScalarType.h>

#include "stretto/base/dtype.h"

namespace stretto {

// The dtype that has the elements of libtorch's type; nothing if stretto has none like it.
inline std::optional<DType> dtype_of_scalar_type(c10::ScalarType type) {
  static constexpr std::pair<c10::ScalarType, DType> kTypes[] = {
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
  for (const auto& [torchs, ours] : kTypes) {
    if (torchs == type) return ours;
  }
  return std::nullopt;
}

}  // namespace stretto

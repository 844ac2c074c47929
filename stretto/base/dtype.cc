// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/dtype.h"

#include "stretto/base/name_in.h"

namespace stretto {

std::string_view name(DType dtype) {
  return name_in({"u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64", "bool", "i16", "u16",
                  "u32", "u64", "c64", "c128", "f8_e4m3", "f8_e5m2"},
                 dtype, "unknown dtype");
}

std::optional<DType> dtype_from_wire(std::uint8_t number) {
  if (number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(number);
}

bool is_floating_point(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return true;
    default:
      return false;
  }
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

DType accumulation_dtype(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/dtype.h"

namespace stretto {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return "u8";
    case DType::i8:
      return "i8";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::boolean:
      return "bool";
    case DType::i16:
      return "i16";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::u64:
      return "u64";
    case DType::c64:
      return "c64";
    case DType::c128:
      return "c128";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::f8_e5m2:
      return "f8_e5m2";
  }
  return "unknown dtype";
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <type_traits>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/cuda/reduction.h"

namespace stretto::cuda {

// Calls `visitor` with the format and the operation of a reduction, and `parts`, the number of the
// format's elements in one element of the dtype. Returns false if there is no such reduction.
template <class Format, class Visitor>
bool visit_number(ReduceOp op, int parts, const Visitor& visitor) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return visitor(Format(), Sum(), parts), true;
    case ReduceOp::product:
      return visitor(Format(), Product(), parts), true;
    case ReduceOp::min:
      return visitor(Format(), Min(), parts), true;
    case ReduceOp::max:
      return visitor(Format(), Max(), parts), true;
    default:
      return false;
  }
}

template <class T, class Visitor>
bool visit_integer(ReduceOp op, const Visitor& visitor) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;  // Bits have no sign.
  switch (op) {
    case ReduceOp::bit_and:
      return visitor(Unsigned(), BitAnd(), 1), true;
    case ReduceOp::bit_or:
      return visitor(Unsigned(), BitOr(), 1), true;
    case ReduceOp::bit_xor:
      return visitor(Unsigned(), BitXor(), 1), true;
    default:
      return visit_number<Plain<T>>(op, 1, visitor);
  }
}

template <class Visitor>
bool visit_boolean(ReduceOp op, const Visitor& visitor) {
  switch (op) {
    case ReduceOp::bit_xor:
      return visitor(Boolean(), BitXor(), 1), true;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return visitor(Boolean(), BitAnd(), 1), true;
    default:
      return visitor(Boolean(), BitOr(), 1), true;
  }
}

template <class Narrow, class Visitor>
bool visit_narrow(DType output, ReduceOp op, const Visitor& visitor) {
  if (output == DType::f32) return visit_number<Widened<Narrow, float>>(op, 1, visitor);
  return visit_number<Widened<Narrow, Narrow>>(op, 1, visitor);
}

template <class Float, class Visitor>
bool visit_complex(ReduceOp op, const Visitor& visitor) {
  if (op == ReduceOp::product) {
    return visitor(Plain<ComplexNumber<Float>>(), Product(), 1), true;
  }
  return visitor(Plain<Float>(), Sum(), 2), true;
}

template <class Visitor>
bool visit_reduction(DType dtype, DType output, ReduceOp op, const Visitor& visitor) {
  if (!supports(op, dtype)) return false;
  switch (dtype) {
    case DType::u8:
      return visit_integer<std::uint8_t>(op, visitor);
    case DType::i8:
      return visit_integer<std::int8_t>(op, visitor);
    case DType::i16:
      return visit_integer<std::int16_t>(op, visitor);
    case DType::u16:
      return visit_integer<std::uint16_t>(op, visitor);
    case DType::i32:
      return visit_integer<std::int32_t>(op, visitor);
    case DType::u32:
      return visit_integer<std::uint32_t>(op, visitor);
    case DType::i64:
      return visit_integer<std::int64_t>(op, visitor);
    case DType::u64:
      return visit_integer<std::uint64_t>(op, visitor);
    case DType::f16:
      return visit_narrow<Half>(output, op, visitor);
    case DType::bf16:
      return visit_narrow<BFloat16>(output, op, visitor);
    case DType::f32:
      return visit_number<Plain<float>>(op, 1, visitor);
    case DType::f64:
      return visit_number<Plain<double>>(op, 1, visitor);
    case DType::boolean:
      return visit_boolean(op, visitor);
    case DType::c64:
      return visit_complex<float>(op, visitor);
    case DType::c128:
      return visit_complex<double>(op, visitor);
    default:
      return false;
  }
}

}  // namespace stretto::cuda

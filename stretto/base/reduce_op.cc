// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/reduce_op.h"

#include "stretto/base/name_in.h"

namespace stretto {

std::string_view name(ReduceOp op) {
  return name_in({"sum", "mean", "product", "min", "max", "bit_and", "bit_or", "bit_xor"}, op,
                 "unknown operation");
}

namespace {

bool is_reducible(DType dtype) { return dtype != DType::f8_e4m3 && dtype != DType::f8_e5m2; }

void append(std::string& list, std::string_view word) {
  if (!list.empty()) list += ", ";
  list += word;
}

std::string reducible_dtypes() {
  std::string list;
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (is_reducible(dtype)) append(list, name(dtype));
  }
  return list;
}

}  // namespace

bool supports(ReduceOp op, DType dtype) {
  if (!is_reducible(dtype)) return false;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product:
      return true;
    case ReduceOp::min:
    case ReduceOp::max:
      return !is_complex(dtype);
    case ReduceOp::mean:
      return dtype != DType::boolean;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor:
      return !is_floating_point(dtype) && !is_complex(dtype);
  }
  return false;
}

std::string supported_ops(DType dtype) {
  std::string list;
  for (int number = 0; number < kReduceOpCount; ++number) {
    const auto op = static_cast<ReduceOp>(number);
    if (supports(op, dtype)) append(list, name(op));
  }
  if (!list.empty()) return list;
  return "none (" + std::string(name(dtype)) + " cannot be reduced; " + reducible_dtypes() +
         " can)";
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/reduce_op.h"

namespace stretto {

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::bit_and:
      return "bit_and";
    case ReduceOp::bit_or:
      return "bit_or";
    case ReduceOp::bit_xor:
      return "bit_xor";
  }
  return "unknown operation";
}

bool supports(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::max:
      return true;
    case ReduceOp::mean:
      return dtype != DType::boolean;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor:
      return !is_floating_point(dtype);
  }
  return false;
}

std::string supported_ops(DType dtype) {
  std::string list;
  for (int number = 0; number < kReduceOpCount; ++number) {
    const auto op = static_cast<ReduceOp>(number);
    if (!supports(op, dtype)) continue;
    if (!list.empty()) list += ", ";
    list += name(op);
  }
  return list;
}

}  // namespace stretto

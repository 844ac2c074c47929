// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

namespace stretto {

// What ranks do together. The numbers travel between ranks: append, never reorder.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier,
  point_to_point,
};

std::string_view name(Collective collective);

// What a rank believes it is doing. Travels with the data, so that ranks which disagree find out at
// once and can say how (see docs/wire_format.md). Equal on all ranks of one operation.
struct OperationDescriptor {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::u8;
  std::uint8_t algorithm = 0;  // So that a rank with another override is found out, too.
  std::int32_t root = -1;      // -1: the collective has none.
  std::uint64_t count = 0;     // Elements, as the collective's documentation counts them.

  friend bool operator==(const OperationDescriptor&, const OperationDescriptor&) = default;
};
static_assert(sizeof(OperationDescriptor) == 16, "travels as it lies in memory");

// "all_reduce(sum f32 [1048576])", "broadcast(f16 [33554432] root 0)".
std::string describe(const OperationDescriptor& operation);

// The first field in which two descriptors differ: "count". Empty if they are equal.
std::string_view first_difference(const OperationDescriptor& a, const OperationDescriptor& b);

}  // namespace stretto

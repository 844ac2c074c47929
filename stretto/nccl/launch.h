// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/nccl/interface.h"

namespace stretto::nccl {

// One call of NCCL. All calls of a collective are made as one group.
struct Step {
  enum class Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive };
  Kind kind = Kind::all_reduce;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  // Data that is only moved counts as bytes, whatever its dtype.
  Type type = Type::u8;
  int peer = 0;  // Or the root.
};

// The calls of NCCL for one collective.
struct Launch {
  std::vector<Step> steps;
  bool overwrites_sends = false;  // Something is received where sent data lies.
  RedOp op = kSum;
  // If it is set, the inputs are multiplied by it and added, instead of `op`.
  std::optional<double> factor = std::nullopt;
};

// Why NCCL cannot do it, as in DeviceOperations::refusal(); empty if it can.
const char* refusal(const OperationDescriptor& operation, double factor);

// The calls by which rank `rank` of `size` takes part in an operation that is not refused. Pairs of
// ranks that share nothing make no call, so a rank whose shares are all empty may make none.
Launch make_launch(const LibraryCall& call, int rank, int size);

}  // namespace stretto::nccl

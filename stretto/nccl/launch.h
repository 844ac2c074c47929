// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/nccl/interface.h"

namespace stretto::nccl {

// One call of NCCL. All those of a collective are made as one group.
struct Step {
  enum class Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive };
  Kind kind = Kind::all_reduce;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  Type type = Type::u8;  // What is only moved is bytes, of whatever dtype.
  int peer = 0;          // Or the root.
};

// A collective as NCCL gets it.
struct Launch {
  std::vector<Step> steps;
  bool overwrites_sends = false;  // What is sent lies where something is received.
  RedOp op = kSum;
  // Instead of `op`: sums of inputs that are multiplied by this before.
  std::optional<double> factor = std::nullopt;
};

// What NCCL cannot do, as DeviceOperations::refusal() says it.
const char* refusal(const OperationDescriptor& operation, double factor);

// The calls by which rank `rank` of `size` takes part in what is not refused. Pairs of ranks that
// share nothing make no call, so a rank whose shares are all empty may make none.
Launch make_launch(const LibraryCall& call, int rank, int size);

}  // namespace stretto::nccl

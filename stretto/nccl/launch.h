// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/status.h"
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

struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

// A collective as NCCL gets it.
struct Launch {
  std::vector<Copy> before;  // Copies on the stream, in front of the steps.
  std::vector<Step> steps;
  std::vector<Copy> after;  // To memory of the host, once the steps have ended.
  RedOp op = kSum;
  // Instead of `op`: sums of inputs that are multiplied by this before.
  std::optional<double> factor = std::nullopt;
};

// What NCCL cannot do, as DeviceOperations::refusal() says it.
const char* refusal(const OperationDescriptor& operation, double factor);

// Where things lie, and memory of the device that belongs to the launch until it has ended, or
// null.
struct DeviceMemory {
  std::function<bool(const void*)> is_device_memory;
  std::function<std::byte*(std::size_t bytes)> scratch;
};

// The calls by which rank `rank` of `size` takes part. Pairs of ranks that share nothing make no
// call, so a rank whose shares are all empty may make none. Fails as DeviceMemory::scratch does.
// What lies in memory of the host is copied to and from scratch.
Result<Launch> make_launch(const LibraryCall& call, int rank, int size, const DeviceMemory& memory);

}  // namespace stretto::nccl

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/bucket_memory.h"

namespace stretto::reducer {

// Assigns items of `bytes` bytes to `ranks`, and returns the rank of each, so that ranks have about
// equally many bytes: the largest item first, each to the rank with the fewest. The result depends
// on the arguments only.
std::vector<Rank> share_out(std::span<const std::size_t> bytes, int ranks);

// Sends each rank's share of some state, which lies scattered in memory, to all ranks. All ranks
// send at the same time, in few large messages, through registered memory that is kept for the next
// call.
class StateExchange {
 public:
  // `timeout` bounds each message; default: the communicator's. `staging_bytes` bounds the memory,
  // and the size of one message of all ranks together; it is at least a byte for each rank.
  // `memory` is where parts lie, and allocates the staging. `communicator` and `memory` must
  // outlive this.
  explicit StateExchange(Communicator& communicator, std::optional<Duration> timeout = std::nullopt,
                         std::size_t staging_bytes = kStagingBytes,
                         BucketMemory& memory = host_buckets());
  static constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

  // Overwrites each part with that of its owner. Lengths and owners must be equal on all ranks.
  // Collective; blocks, except for copies on a device, which run on the calling thread's current
  // stream. Throws what Communicator::all_gather throws; then some parts may have been overwritten.
  void run(std::span<const ByteSpan> parts, std::span<const Rank> owners);

 private:
  Communicator& communicator_;
  std::optional<Duration> timeout_;
  std::size_t staging_bytes_;
  BucketMemory& memory_;
  Memory staging_;
};

}  // namespace stretto::reducer

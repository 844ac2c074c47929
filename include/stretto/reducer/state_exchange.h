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

// Gives each of `bytes` items to one of `ranks`, so that all have about as many bytes: the largest
// first, each to the rank with the least. The same on all ranks that pass the same sizes.
std::vector<Rank> share_out(std::span<const std::size_t> bytes, int ranks);

// Makes each rank's share of some state everyone's, where state lies scattered in memory: all ranks
// send at the same time, in few large messages, through registered memory that is kept for the next
// time.
class StateExchange {
 public:
  // `timeout` is that of each message; default: the communicator's. `staging_bytes` bounds the
  // memory, and one message of all ranks together, at a byte for each rank or more. `memory`: where
  // parts lie, and what makes it. `communicator` and `memory` must outlive this.
  explicit StateExchange(Communicator& communicator, std::optional<Duration> timeout = std::nullopt,
                         std::size_t staging_bytes = kStagingBytes,
                         BucketMemory& memory = host_buckets());
  static constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

  // Overwrites each part with that of its owner. Collective, blocks, but not for copies on a
  // device: those are on the calling thread's current stream. Lengths and owners must be equal on
  // all ranks. Throws what Communicator::all_gather throws; then some parts may have been
  // overwritten.
  void run(std::span<const ByteSpan> parts, std::span<const Rank> owners);

 private:
  Communicator& communicator_;
  std::optional<Duration> timeout_;
  std::size_t staging_bytes_;
  BucketMemory& memory_;
  Memory staging_;
};

}  // namespace stretto::reducer

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/reducer/bucket_plan.h"

namespace stretto {

// Must be equal on all ranks. Every field has a default; name only what you change.
struct DistributedDataParallelOptions {
  // How many bytes of gradients close the first bucket, the second, ...; the last limit holds for
  // all that follow. As in PyTorch, a single value is the limit of the first bucket, too.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last.
  bool last_bucket_small = false;
  // After the first backward pass, form buckets in the order in which gradients became ready.
  bool rebuild_buckets = true;
  // Before each forward pass in training mode, make rank 0's buffers (the running averages of batch
  // normalisation, say) everyone's.
  bool broadcast_buffers = true;
  // At construction, make rank 0's parameters and buffers everyone's.
  bool broadcast_parameters = true;
  // For each operation of a step: reductions, and broadcasts of buffers. Default: the
  // communicator's, which always holds for the constructor.
  std::optional<Duration> timeout = std::nullopt;
};

}  // namespace stretto

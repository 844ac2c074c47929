// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/clock.h"

namespace stretto {

// Cost of one step. Times are in seconds.
struct StepStatistics {
  std::uint64_t step = 0;  // Counted from 1.
  TimePoint begin;         // When the first gradient was ready.
  // From the first ready gradient to the call of finalize().
  double backward_seconds = 0;
  // From the launch of the first bucket to the end of the last one, as seen by this rank.
  double communication_seconds = 0;
  // Part of communication that was not hidden behind backward: time that this rank waited in
  // finalize() and spent on communication in mark_ready(), and that a DistributedDataParallel spent
  // on buffers before forward, on copies of gradients into buckets, and after finalize().
  double exposed_seconds = 0;
  // The last forward pass before backward, buffers included; only of a DistributedDataParallel.
  TimePoint forward_begin;
  double forward_seconds = 0;
  // Bytes of the buckets that were reduced: what was passed to the communication hook.
  std::size_t bytes = 0;
  // For each gradient, when it became ready, counted from the first one; -1 if it did not. For
  // small gradients the clock is read at every 32 KiB of gradients and at the last one of a bucket.
  // If DistributedDataParallel has a gradient written into its bucket directly, the time is that of
  // the next gradient, or of the end of the pass.
  std::vector<double> ready_seconds;
  // For each bucket of the step: its number of gradients, and when its reduction began and was seen
  // to have ended, both counted from the first ready gradient; -1 if it was left out.
  std::vector<std::size_t> bucket_gradients;
  std::vector<double> launch_seconds;
  std::vector<double> end_seconds;
};

}  // namespace stretto

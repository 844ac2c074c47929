// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/clock.h"

namespace stretto {

// What one step cost. Times are seconds.
struct StepStatistics {
  std::uint64_t step = 0;  // Counted from 1.
  TimePoint begin;         // When the first gradient was ready.
  // From the first gradient that was ready to the call of finalize().
  double backward_seconds = 0;
  // From the launch of the first bucket to the end of the last one, as seen by this rank.
  double communication_seconds = 0;
  // What communication took of this rank's time, not hidden behind backward: what finalize()
  // waited, what mark_ready() spent on it, and what a DistributedDataParallel spent on buffers
  // before forward, on copies of gradients into buckets, and after finalize().
  double exposed_seconds = 0;
  // The last forward pass before, buffers included; of a DistributedDataParallel only.
  TimePoint forward_begin;
  double forward_seconds = 0;
  // Of gradients, in the buckets that were reduced: what is handed to the communication hook.
  std::size_t bytes = 0;
  // For each gradient, when it became ready, counted from the first one; -1 if it did not. Where
  // gradients are small, the clock is read at every 32 KiB of them and at the last of a bucket. Of
  // those that DistributedDataParallel has had written into buckets: when the next one came, or at
  // the end of the pass.
  std::vector<double> ready_seconds;
  // For each bucket of the step, how many gradients it had, and when its reduction began and was
  // seen to have ended, counted alike; -1 if it was left out.
  std::vector<std::size_t> bucket_gradients;
  std::vector<double> launch_seconds;
  std::vector<double> end_seconds;
};

}  // namespace stretto

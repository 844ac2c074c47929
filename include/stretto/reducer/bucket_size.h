// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

namespace reducer {

// Time of an all_reduce of n bytes, as a line: latency_seconds + n / bytes_per_second.
struct ReductionCost {
  double latency_seconds = 0;
  double bytes_per_second = 1;
};

// Bucket sizes for `cost`. A bucket is so large that latency is a twentieth of its time: from 256
// KiB to 25 MiB, and a power of two, so that small differences between measurements change nothing.
// The first bucket has a quarter of that size, since communication begins with it.
std::vector<std::size_t> bucket_bytes_for(const ReductionCost& cost);

}  // namespace reducer

// Values for ReducerOptions::bucket_bytes, from the cost of reductions between these ranks now:
// `{.bucket_bytes = measured_bucket_bytes(*comm)}`. Measures ten reductions of up to 4 MiB; all
// ranks get rank 0's result. Collective, blocks. `timeout` bounds each operation; default: the
// communicator's. Throws what all_reduce() throws.
std::vector<std::size_t> measured_bucket_bytes(
    Communicator& communicator, const std::optional<Duration>& timeout = std::nullopt);

// The same for a DistributedDataParallel, which measures when it is built: `{.bucket_bytes =
// kAutomaticBucketBytes}`. A Reducer alone does not measure, and refuses it.
inline const std::vector<std::size_t> kAutomaticBucketBytes = {
    std::numeric_limits<std::size_t>::max()};

}  // namespace stretto

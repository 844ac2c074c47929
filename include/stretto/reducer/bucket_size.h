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

// What an all_reduce of n bytes takes, as a line: latency_seconds + n / bytes_per_second.
struct ReductionCost {
  double latency_seconds = 0;
  double bytes_per_second = 1;
};

// The limits for that: large enough that latency is a twentieth of a bucket's time, within 256 KiB
// and 25 MiB, a power of two so that small differences of the measurement change nothing; the first
// one a quarter of it, since communication begins with that.
std::vector<std::size_t> bucket_bytes_for(const ReductionCost& cost);

}  // namespace reducer

// Limits for the option bucket_bytes, from what reductions between these ranks cost now:
// `{.bucket_bytes = measured_bucket_bytes(*comm)}`. Measures for a moment (ten reductions of up to
// 4 MiB); all ranks get rank 0's result. Collective, blocks. `timeout`: of each operation; default:
// the communicator's. Throws what all_reduce() throws.
std::vector<std::size_t> measured_bucket_bytes(
    Communicator& communicator, const std::optional<Duration>& timeout = std::nullopt);

// The same for a DistributedDataParallel, measured when it is built:
// `{.bucket_bytes = kAutomaticBucketBytes}`. A Reducer alone measures nothing, and refuses it.
inline const std::vector<std::size_t> kAutomaticBucketBytes = {
    std::numeric_limits<std::size_t>::max()};

}  // namespace stretto

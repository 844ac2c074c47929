// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_size.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "stretto/base/clock.h"
#include "stretto/reducer/bucket_plan.h"

namespace stretto {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
constexpr std::size_t kLargeBytes = std::size_t{4} << 20;
constexpr int kRepetitions = 4;  // After one that is not counted.
constexpr std::size_t kSmallestBucketBytes = std::size_t{256} << 10;
constexpr double kLatencyShare = 0.05;  // Of a bucket's time.

// The shortest of several times: it shows what the links can do, without other load on the machine.
double shortest_seconds(Communicator& communicator, std::span<float> numbers,
                        const std::optional<Duration>& timeout) {
  double shortest = 0;
  for (int i = 0; i <= kRepetitions; ++i) {
    const TimePoint begin = Clock::now();
    communicator.all_reduce(numbers, {.timeout = timeout}).wait();
    const double time = seconds(Clock::now() - begin);
    if (i > 0) shortest = i == 1 ? time : std::min(shortest, time);
  }
  return shortest;
}

}  // namespace

std::vector<std::size_t> reducer::bucket_bytes_for(const ReductionCost& cost) {
  const double wanted = cost.latency_seconds * (1 / kLatencyShare - 1) * cost.bytes_per_second;
  const double bounded = std::clamp(wanted, static_cast<double>(kSmallestBucketBytes),
                                    static_cast<double>(kBucketBytes));
  const std::size_t bytes =
      std::min(std::bit_ceil(static_cast<std::size_t>(bounded)), kBucketBytes);
  return {bytes / 4, bytes};
}

std::vector<std::size_t> measured_bucket_bytes(Communicator& communicator,
                                               const std::optional<Duration>& timeout) {
  Buffer<float> numbers = communicator.allocate<float>(kLargeBytes / sizeof(float));
  const double small =
      shortest_seconds(communicator, numbers.span().first(kSmallBytes / sizeof(float)), timeout);
  const double large = shortest_seconds(communicator, numbers.span(), timeout);
  // If the clock is too coarse to tell the two times apart, buckets get the smallest size.
  const double seconds_per_byte =
      std::max(large - small, 1e-9) / static_cast<double>(kLargeBytes - kSmallBytes);
  const double latency = std::max(0.0, small - seconds_per_byte * kSmallBytes);
  const auto limits = reducer::bucket_bytes_for({latency, 1 / seconds_per_byte});
  std::vector<std::uint64_t> agreed(limits.begin(), limits.end());
  communicator.broadcast(agreed, {.timeout = timeout}).wait();
  return {agreed.begin(), agreed.end()};
}

}  // namespace stretto

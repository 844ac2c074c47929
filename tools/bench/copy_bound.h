// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tools/bench/measure.h"

namespace stretto::bench {

// What an all-reduce of N bytes is compared with: the time in which each rank copies N bytes of its
// own, all at the same time, with plain or with non-temporal stores, whichever is faster. Both move
// 2 N bytes for each rank, and no all-reduce on one host can move less.
class CopyBound {
 public:
  // For fewer bytes, reading the clock takes most of the time.
  static constexpr std::size_t kSmallestBytes = 1024;

  // Allocates and touches two buffers of `bytes`, in huge pages if the system has them.
  explicit CopyBound(std::size_t bytes);

  // Takes some samples on all ranks; collective.
  void sample(Coordinator& coordinator);
  // Returns the median time of a copy on the slowest rank, with the faster kind of stores;
  // collective.
  double best_us(Coordinator& coordinator);

 private:
  double copy_us(Coordinator& coordinator, bool non_temporal);

  std::size_t bytes_;
  std::shared_ptr<std::byte> from_;
  std::shared_ptr<std::byte> to_;
  std::vector<double> plain_us_ = {};
  std::vector<double> non_temporal_us_ = {};
};

// Like memcpy, but writes past the caches where the processor has such stores.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace stretto::bench

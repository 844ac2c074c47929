// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tools/bench/measure.h"

namespace stretto::bench {

// What an all-reduce of N bytes is compared with: the time that all ranks need when each copies N
// bytes of its own at the same time, with plain or with non-temporal stores, whichever is faster.
// Both move 2 N bytes for each rank, and no all-reduce on one host can move less.
class CopyBound {
 public:
  // Below, the time of a copy is that of the clock.
  static constexpr std::size_t kSmallestBytes = 1024;

  // Allocates and touches two buffers of `bytes`, in huge pages where they may be had.
  explicit CopyBound(std::size_t bytes);

  // Takes some samples on all ranks; collective.
  void sample(Coordinator& coordinator);
  // Returns the median over all samples of the better way to copy on the slowest rank; collective.
  double best_us(Coordinator& coordinator);

 private:
  double copy_us(Coordinator& coordinator, bool non_temporal);

  std::size_t bytes_;
  std::shared_ptr<std::byte> from_;
  std::shared_ptr<std::byte> to_;
  std::vector<double> plain_us_ = {};
  std::vector<double> non_temporal_us_ = {};
};

// memcpy that does not put what it writes into the caches, where the processor has such stores.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace stretto::bench

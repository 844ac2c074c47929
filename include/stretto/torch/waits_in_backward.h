// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>

namespace stretto::ddp {

// Counts the objects that may wait for other ranks while a backward pass runs. Layers of
// SyncBatchNorm, and models whose communication hooks do not finish early, have it as a member. If
// one rank waited in one such object and another rank in another, neither would go on. Ranks that
// are threads of one process count each other's objects, too: then hooks wait for the end of
// backward more often than necessary.
class WaitsInBackward {
 public:
  WaitsInBackward() { count_.fetch_add(1, std::memory_order_relaxed); }
  WaitsInBackward(const WaitsInBackward&) : WaitsInBackward() {}
  WaitsInBackward& operator=(const WaitsInBackward&) = default;
  ~WaitsInBackward() { count_.fetch_sub(1, std::memory_order_relaxed); }

  // The number of such objects in this process.
  static int count() { return count_.load(std::memory_order_relaxed); }

 private:
  static inline std::atomic<int> count_ = 0;
};

}  // namespace stretto::ddp

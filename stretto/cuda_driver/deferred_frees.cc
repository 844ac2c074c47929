// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda_driver/deferred_frees.h"

#include <algorithm>
#include <iterator>

#include "stretto/base/log.h"

namespace stretto::cuda {

DeferredFrees::~DeferredFrees() {
  free_all();
  const MutexLock held(mutex_);
  if (left_.empty()) return;
  log(LogLevel::warning, "memory of device {} is not freed: a CUDA graph is being captured",
      driver_->number());
  // For ever: the driver may be gone when a program ends.
  static Mutex kept_mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const MutexLock kept_held(kept_mutex);
  std::ranges::move(left_, std::back_inserter(*kept));
}

void DeferredFrees::add(std::shared_ptr<void> memory) {
  {
    const MutexLock held(mutex_);
    left_.push_back(std::move(memory));
  }
  free_all();
}

void DeferredFrees::free_all() {
  std::vector<std::shared_ptr<void>> freed;
  {
    const MutexLock held(mutex_);
    freed.swap(left_);
  }
  if (freed.empty() || driver_->wait_to_free()) return;
  const MutexLock held(mutex_);
  std::ranges::move(freed, std::back_inserter(left_));
}

}  // namespace stretto::cuda

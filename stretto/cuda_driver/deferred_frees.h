// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/cuda_driver/driver.h"

namespace stretto::cuda {

// Memory of a device that its owners have let go of, which whatever the process has begun there may
// still use. To wait for that would spoil a CUDA graph that is being captured, so what is let go of
// meanwhile is freed later. Any thread.
class DeferredFrees {
 public:
  explicit DeferredFrees(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}
  // What still cannot be freed then stays until the process ends.
  ~DeferredFrees();
  DeferredFrees(const DeferredFrees&) = delete;
  DeferredFrees& operator=(const DeferredFrees&) = delete;

  // Waits for the device, and drops `memory`; or has a later call do so.
  void add(std::shared_ptr<void> memory);
  // The same for all that is left.
  void free_all();

 private:
  std::shared_ptr<const Driver> driver_;
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> left_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::cuda

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/cuda_driver/driver.h"

namespace stretto::cuda {

// Memory of a device that its owners have dropped, but that work in flight there may still use.
// Freeing it waits for the device, which would spoil a CUDA graph that is being captured. So memory
// that is dropped meanwhile is freed later. Any thread.
class DeferredFrees {
 public:
  explicit DeferredFrees(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}
  // Memory that still cannot be freed then stays until the process ends.
  ~DeferredFrees();
  DeferredFrees(const DeferredFrees&) = delete;
  DeferredFrees& operator=(const DeferredFrees&) = delete;

  // Waits for the device, and frees `memory`; during a capture, leaves that to a later call.
  void add(std::shared_ptr<void> memory);
  // The same for all that is left.
  void free_all();

 private:
  std::shared_ptr<const Driver> driver_;
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> left_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::cuda

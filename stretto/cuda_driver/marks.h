// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/status.h"
#include "stretto/cuda_driver/driver.h"

namespace stretto::cuda {

// Moments in a program's work on a device, by number (DeviceOperations::mark()), and events that
// are used again for other purposes. Any thread.
class Marks {
 public:
  using Event = void*;

  explicit Marks(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Marks the end of the work that is on `stream` now; on the default stream, also of the work on
  // streams that it waits for.
  Result<int> add(StreamHandle stream);
  // Later work of `stream` waits for the mark, which is removed.
  Status let_wait(StreamHandle stream, int mark);
  // Whether the stream has passed the mark. True, too, if the device has failed, which the next
  // call tells.
  bool has_passed(int mark);
  // Removes the mark.
  void forget(int mark) { give_back(take(mark)); }

  // An event of Driver::make_event(), or one that has been given back.
  Result<Event> take_event();
  // Allocates no memory.
  void give_back(Event event) noexcept;

 private:
  Event take(int mark);

  std::shared_ptr<const Driver> driver_;
  Mutex mutex_;
  std::vector<Event> marks_ STRETTO_GUARDED_BY(mutex_);  // By number; null: free.
  std::vector<Event> idle_ STRETTO_GUARDED_BY(mutex_);   // Has room for all events.
  std::size_t made_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::cuda

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

// Moments in what a program has begun on a device, by number (DeviceOperations::mark()), and events
// for what is asked for more often. Any thread.
class Marks {
 public:
  using Event = void*;

  explicit Marks(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // What is on the stream now; of the default one, also what is on those that it waits for.
  Result<int> add(StreamHandle stream);
  // What the stream gets from now on comes behind it; the mark is gone.
  Status let_wait(StreamHandle stream, int mark);
  // Whether the stream has come there. Its device may have failed instead, which is told by what
  // is begun next.
  bool has_passed(int mark);
  // The mark is gone.
  void forget(int mark) { give_back(take(mark)); }

  // An event of Driver::make_event(), or one that has been given back.
  Result<Event> take_event();
  // Needs no memory.
  void give_back(Event event) noexcept;

 private:
  Event take(int mark);

  std::shared_ptr<const Driver> driver_;
  Mutex mutex_;
  std::vector<Event> marks_ STRETTO_GUARDED_BY(mutex_);  // By number; null: free.
  std::vector<Event> idle_ STRETTO_GUARDED_BY(mutex_);   // With room for all that there are.
  std::size_t made_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::cuda

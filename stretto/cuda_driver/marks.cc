// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda_driver/marks.h"

#include <algorithm>

namespace stretto::cuda {

Marks::~Marks() {
  const Driver::Current current(*driver_);
  const MutexLock held(mutex_);
  for (Event event : idle_) (void)driver_->call().event_destroy(event);
  for (Event event : marks_) {
    if (event != nullptr) (void)driver_->call().event_destroy(event);
  }
}

Result<int> Marks::add(StreamHandle stream) {
  const Driver::Current current(*driver_);
  STRETTO_ASSIGN_OR_RETURN(Event event, take_event());
  const Status recorded =
      driver_->status_of_call("cuEventRecord", driver_->call().event_record(event, stream));
  if (!recorded.ok()) {
    give_back(event);
    return recorded;
  }
  const MutexLock held(mutex_);
  auto free = std::ranges::find(marks_, nullptr);
  if (free == marks_.end()) free = marks_.insert(free, nullptr);
  *free = event;
  return static_cast<int>(free - marks_.begin());
}

Status Marks::let_wait(StreamHandle stream, int mark) {
  Event event = take(mark);
  if (event == nullptr) return {};
  const int result = driver_->call().stream_wait_event(stream, event, 0);
  give_back(event);  // The stream waits for the event as it was at that call.
  return driver_->status_of_call("cuStreamWaitEvent", result);
}

bool Marks::has_passed(int mark) {
  const Driver::Current current(*driver_);
  const MutexLock held(mutex_);
  Event const event = marks_[static_cast<std::size_t>(mark)];
  return event == nullptr || driver_->call().event_query(event) != DriverInterface::kNotReady;
}

Marks::Event Marks::take(int mark) {
  const MutexLock held(mutex_);
  return std::exchange(marks_[static_cast<std::size_t>(mark)], nullptr);
}

Result<Marks::Event> Marks::take_event() {
  {
    const MutexLock held(mutex_);
    if (!idle_.empty()) {
      Event event = idle_.back();
      idle_.pop_back();
      return event;
    }
    idle_.reserve(++made_);
  }
  return driver_->make_event();
}

void Marks::give_back(Event event) noexcept {
  if (event == nullptr) return;
  const MutexLock held(mutex_);
  idle_.push_back(event);
}

}  // namespace stretto::cuda

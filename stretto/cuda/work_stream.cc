// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/work_stream.h"

#include <utility>

namespace stretto::cuda {

class WorkStream::Event final : public execution::StreamEvent {
 public:
  explicit Event(WorkStream& stream) : stream_(&stream) {}
  bool is_done() override { return stream_->have_ended(after_); }

 private:
  friend class WorkStream;
  WorkStream* stream_;
  std::uint64_t after_ = 0;  // Operations before the event.
};

void WorkStream::follow(Work work) {
  works_.push_back(std::move(work));
  ++followed_;
}

Result<std::unique_ptr<execution::StreamEvent>> WorkStream::make_event() {
  return std::unique_ptr<execution::StreamEvent>(std::make_unique<Event>(*this));
}

void WorkStream::record(execution::StreamEvent& event) {
  static_cast<Event&>(event).after_ = followed_;
}

bool WorkStream::is_done() { return have_ended(followed_); }

bool WorkStream::have_ended(std::uint64_t count) {
  for (; ended_ < count && works_.front().done(); ++ended_) {
    const Status status = works_.front().wait_status();
    if (status_.ok()) status_ = status;
    works_.pop_front();
  }
  return ended_ >= count;
}

}  // namespace stretto::cuda

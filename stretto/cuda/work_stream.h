// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <deque>

#include "stretto/communicator/work.h"
#include "stretto/execution/stream.h"

namespace stretto::cuda {

// The operations of a communicator as a stream. Other streams can wait for them by events, and they
// are submitted after the other streams' events that they wait for. Operations make progress when
// somebody asks for their state. One thread at a time; the destructor waits for the operations.
class WorkStream final : public execution::Stream {
 public:
  // Adds `work` behind the operations that are there already.
  void follow(Work work);

  Result<std::unique_ptr<execution::StreamEvent>> make_event() override;
  void record(execution::StreamEvent& event) override;
  bool is_done() override;
  Status status() override { return status_; }

 private:
  class Event;
  bool have_ended(std::uint64_t count);

  std::deque<Work> works_;
  std::uint64_t followed_ = 0;
  std::uint64_t ended_ = 0;
  Status status_;
};

}  // namespace stretto::cuda

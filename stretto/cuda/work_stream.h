// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <deque>

#include "stretto/communicator/work.h"
#include "stretto/execution/stream.h"

namespace stretto::cuda {

// The operations of a communicator as a stream: what others can wait for by events, and what waits
// for events of others before it is submitted. Whoever asks makes operations progress. One thread
// at a time; destroying it waits for them.
class WorkStream final : public execution::Stream {
 public:
  // Behind those that it follows already.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/execution/kernel_queue.h"

namespace stretto::testing {

// Streams and events as a device has them, of which each does its work in its order and otherwise
// at random; and a check for races: of two steps that touch the same bytes, and one of which writes
// them, one must happen before the other, by what streams, events and the thread that asks for them
// order (vector clocks), however the dice fall.
//
// Whoever asks whether something is done makes it go on, perhaps. One thread at a time.
class SimulatedDevice final : public execution::Device {
 public:
  explicit SimulatedDevice(std::uint64_t seed) : random_(seed), clocks_(1, Clock(1)) {}

  Result<std::unique_ptr<execution::KernelQueue>> make_queue() override;
  Result<std::shared_ptr<void>> pin(ByteSpan) override { return std::shared_ptr<void>(); }
  // Wrong on purpose: events are recorded before the last step that was begun, not behind it.
  void record_too_early() { records_too_early_ = true; }
  // Does one thing of what streams have to do, if there is any that need not wait.
  void work();
  // The first race; empty: none so far.
  const std::string& race() const { return race_; }

 private:
  using Clock = std::vector<std::uint64_t>;  // Of the host, which is 0, and of each stream.
  // An event, as it has been recorded once.
  struct Moment {
    bool has_come = false;
    Clock clock;
  };
  class Event;
  class Queue;
  // What a stream has to do: a step, or to wait for or to be a moment.
  struct Item {
    execution::BoundStep step = {};
    std::size_t count = 0;
    std::shared_ptr<Moment> moment = nullptr;
    bool waits = false;
    Clock begun_at = {};
  };
  struct Access {
    const std::byte* begin;
    const std::byte* end;
    bool writes;
    std::size_t stream;
    std::uint64_t time;
  };

  void join(std::size_t stream, const Clock& other);
  void do_next(std::size_t stream);
  void run(std::size_t stream, const Item& item);
  void touch(std::size_t stream, const void* data, std::size_t bytes, bool writes);

  Random random_;
  bool records_too_early_ = false;
  std::vector<Clock> clocks_;
  std::vector<std::deque<Item>> items_{1};  // None of the host.
  std::vector<Access> accesses_;
  std::string race_;
};

}  // namespace stretto::testing

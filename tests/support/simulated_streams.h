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

// Simulates the streams and events of a device. A stream does its work in order, but the streams
// take turns at random. Also checks for races: of two steps that touch the same bytes, at least one
// of which writes, one must happen before the other. The order by streams, events and the calling
// thread decides (vector clocks), not the random order of a run.
//
// The simulation may go on whenever its caller asks whether something is done. For one thread at a
// time.
class SimulatedDevice final : public execution::Device {
 public:
  explicit SimulatedDevice(std::uint64_t seed) : random_(seed), clocks_(1, Clock(1)) {}

  Result<std::unique_ptr<execution::KernelQueue>> make_queue() override;
  Result<std::shared_ptr<void>> pin(ByteSpan) override { return std::shared_ptr<void>(); }
  // A deliberate error: from now on events are recorded before the last step on the stream, not
  // after it.
  void record_too_early() { records_too_early_ = true; }
  // Does one item of a random stream, if any stream has one that need not wait.
  void work();
  // The first race, or the error of a failed step; empty if there is none so far.
  const std::string& race() const { return race_; }

 private:
  using Clock = std::vector<std::uint64_t>;  // Times of the host, at index 0, and of each stream.
  // One recording of an event.
  struct Moment {
    bool has_come = false;
    Clock clock;
  };
  class Event;
  class Queue;
  // One item of a stream's work: a step, a wait for a moment, or the recording of one.
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
  std::vector<std::deque<Item>> items_{1};  // Index 0, the host, stays empty.
  std::vector<Access> accesses_;
  std::string race_;
};

}  // namespace stretto::testing

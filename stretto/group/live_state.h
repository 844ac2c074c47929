// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "stretto/base/clock.h"

namespace stretto::group {

// What a rank tells the watchers of a job about itself.
struct LiveState {
  // How long threads of this rank have waited for operations since it joined, including the
  // library's own threads that wait for the sake of a PyTorch future. If ranks share the work
  // evenly, the slowest rank waits least.
  Duration waited{};
  std::uint64_t collectives = 0;  // Begun so far in its present groups.
  // "is in barrier() #3, waiting for rank 1"; "ended barrier() #2 4.0 s ago; in its own code". A
  // rank that has operations in flight and waits for none is in its own code, too.
  std::string doing = {};
};

// The same for one of its groups.
struct GroupLiveState {
  std::uint64_t collectives = 0;
  bool is_busy = false;  // Whether an operation is in flight.
  // Busy: begin of the operation that is longest in flight. Else: about when the last collective
  // ended.
  TimePoint since = {};
  std::string doing = {};
};

// Measures the time in which at least one thread waits in an engine. Not thread safe.
class WaitTime {
 public:
  void begin() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    if (threads_++ == 0) since_ = Clock::now();
  }
  void end() {
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    if (--threads_ == 0) total_ += Clock::now() - since_;
  }
  // Whether a thread of this process waits, in any engine: each of PyTorch's groups has its own
  // engine.
  static bool is_anybody_waiting() { return waiting_.load(std::memory_order_relaxed) > 0; }
  // The total until now. It reads the clock itself: with a caller's earlier time the total could
  // shrink.
  Duration total() const { return threads_ > 0 ? total_ + (Clock::now() - since_) : total_; }

 private:
  // Relaxed suffices: it is only reported, and orders no other data.
  static inline std::atomic<int> waiting_ = 0;
  int threads_ = 0;
  TimePoint since_{};
  Duration total_{};
};

}  // namespace stretto::group

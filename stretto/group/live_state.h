// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "stretto/base/clock.h"

namespace stretto::group {

// How a rank gets on.
struct LiveState {
  // For how long operations have been waited for since it joined, also by a thread of the library
  // where PyTorch holds a future of one. Of ranks that share the work evenly, the one for which the
  // others wait waits least.
  Duration waited{};
  std::uint64_t collectives = 0;  // Begun in the groups that it has.
  // "is in barrier() #3, waiting for rank 1"; "ended barrier() #2 4.0 s ago; in its own code". In
  // its own code is, too, who has operations in flight and waits for none.
  std::string doing = {};
};

// The same in one of its groups.
struct GroupLiveState {
  std::uint64_t collectives = 0;
  bool is_busy = false;  // Whether an operation is in flight.
  // When the one that is longest in flight has begun; else about when the last collective ended.
  TimePoint since = {};
  std::string doing = {};
};

// The time in which at least one thread waits for an engine. Not thread safe.
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
  // Whether a thread of this process waits, for whichever engine: each group of PyTorch's has one.
  static bool is_anybody_waiting() { return waiting_.load(std::memory_order_relaxed) > 0; }
  // Until now, by the same clock: with an earlier moment it would shrink.
  Duration total() const { return threads_ > 0 ? total_ + (Clock::now() - since_) : total_; }

 private:
  // Only told to whoever watches, so nothing else has to be seen with it.
  static inline std::atomic<int> waiting_ = 0;
  int threads_ = 0;
  TimePoint since_{};
  Duration total_{};
};

}  // namespace stretto::group

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

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
  // "is in barrier() #3, waiting for rank 1"; "ended barrier() #2 4.0 s ago; in its own code".
  std::string doing = {};
};

// The time in which at least one thread waits. Not thread safe.
class WaitTime {
 public:
  void begin() {
    if (threads_++ == 0) since_ = Clock::now();
  }
  void end() {
    if (--threads_ == 0) total_ += Clock::now() - since_;
  }
  // Until now, by the same clock: with an earlier moment it would shrink.
  Duration total() const { return threads_ > 0 ? total_ + (Clock::now() - since_) : total_; }

 private:
  int threads_ = 0;
  TimePoint since_{};
  Duration total_{};
};

}  // namespace stretto::group

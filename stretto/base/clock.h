// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>

namespace stretto {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// A moment after which waiting ends. Default-constructed: never.
class Deadline {
 public:
  constexpr Deadline() = default;
  explicit constexpr Deadline(TimePoint time) : time_(time) {}

  static Deadline after(Duration duration) {
    const TimePoint now = Clock::now();
    // A duration that would overflow the clock means "never".
    return duration >= TimePoint::max() - now ? Deadline() : Deadline(now + duration);
  }

  constexpr TimePoint time() const { return time_; }
  bool passed() const { return time_ != TimePoint::max() && Clock::now() >= time_; }
  // Zero once it has passed.
  Duration remaining() const {
    const TimePoint now = Clock::now();
    return now >= time_ ? Duration::zero() : time_ - now;
  }

 private:
  TimePoint time_ = TimePoint::max();
};

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace stretto

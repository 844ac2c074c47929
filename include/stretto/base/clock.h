// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <chrono>

namespace stretto {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// The time at which waiting ends, and the time at which it began. Default-constructed: it never
// ends.
class Deadline {
 public:
  constexpr Deadline() = default;
  explicit constexpr Deadline(TimePoint time) : time_(time) {}

  static Deadline after(Duration duration) {
    const TimePoint now = Clock::now();
    // A duration that would overflow the clock means "never".
    Deadline deadline;
    deadline.set_at_ = now;
    if (duration < TimePoint::max() - now) deadline.time_ = now + duration;
    return deadline;
  }

  constexpr TimePoint time() const { return time_; }
  bool passed() const { return time_ != TimePoint::max() && Clock::now() >= time_; }
  // Zero once it has passed.
  Duration remaining() const {
    const TimePoint now = Clock::now();
    return now >= time_ ? Duration::zero() : time_ - now;
  }
  // When it was set, if by after(); else time().
  constexpr TimePoint set_at() const { return std::min(set_at_, time_); }

 private:
  TimePoint time_ = TimePoint::max();
  TimePoint set_at_ = TimePoint::max();
};

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace stretto

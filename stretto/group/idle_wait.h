// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "stretto/base/clock.h"

namespace stretto::group {

// Tells the processor that this thread spins, and lets some tens of cycles pass.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on cores that run one thread each.
#endif
}

// When a wait is likely to end, by how long the last ones took. Whoever sleeps until a message
// comes is late: the core sleeps, too, and on a long link nothing else has woken it. Whoever is
// awake by then is not. Not thread safe.
class ArrivalForecast {
 public:
  // Counted from the begin of a wait. Empty where nothing is foreseen.
  struct Window {
    Duration begin{};
    Duration end{};
    bool contains(Duration waited) const { return waited >= begin && waited < end; }
  };

  // A wait that was longer than IdleWait::kYieldTime has ended.
  void note(Duration waited) {
    last_[next_] = waited;
    next_ = (next_ + 1) % last_.size();
  }
  // Known where the last waits took equally long. So one that takes another time costs a window
  // once, and then nothing until some agree again.
  Window expected() const {
    const auto [least, most] = std::ranges::minmax(last_);
    if (least == Duration::zero() || most > kLongest || most - least > kSpread) return {};
    return {.begin = least - least / 64 - kTimerLateness, .end = most + kSpread};
  }

 private:
  static constexpr std::chrono::microseconds kSpread{500};
  // Of a sleep that ends by itself, which is also late by a share of its length.
  static constexpr std::chrono::microseconds kTimerLateness{150};
  // Longer than any way: what takes longer is work.
  static constexpr std::chrono::milliseconds kLongest{200};

  std::array<Duration, 3> last_{};
  std::size_t next_ = 0;
};

// One wait of a thread that has found nothing to do: whether it gives its core away for a moment or
// sleeps. It yields for a while first, and again when the end is expected. Not thread safe.
class IdleWait {
 public:
  static constexpr std::chrono::milliseconds kYieldTime{1};

  IdleWait() = default;
  explicit IdleWait(const ArrivalForecast::Window& expected) : expected_(expected) {}

  // Asked before each step; the wait begins when this is asked for the first time.
  bool should_yield(TimePoint now) {
    if (begin_ == TimePoint{}) begin_ = now;
    const Duration waited = now - begin_;
    return waited < kYieldTime || expected_.contains(waited);
  }
  // Until when to sleep at most, if nothing comes.
  TimePoint wake_time(TimePoint now) const {
    return now - begin_ < expected_.begin ? begin_ + expected_.begin : TimePoint::max();
  }
  // Something has come: a long wait is remembered.
  void end(ArrivalForecast& forecast) const {
    if (begin_ == TimePoint{}) return;
    const Duration waited = Clock::now() - begin_;
    if (waited > kYieldTime) forecast.note(waited);
  }

 private:
  ArrivalForecast::Window expected_;
  TimePoint begin_{};
};

}  // namespace stretto::group

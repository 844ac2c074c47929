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

// Predicts from the last waits when a wait is likely to end. A thread that sleeps until a message
// comes reacts late, because its core sleeps too, and while messages take long nothing else wakes
// the core. So the thread should be awake by the predicted time. Not thread safe.
class ArrivalForecast {
 public:
  // Times since the begin of a wait. Empty if there is no prediction.
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
  // There is a prediction only if the last three waits took about equally long. So after a wait of
  // another length nothing is predicted, and no window costs time, until three agree again.
  Window expected() const {
    const auto [least, most] = std::ranges::minmax(last_);
    if (least == Duration::zero() || most > kLongest || most - least > kSpread) return {};
    return {.begin = least - least / 64 - kTimerLateness, .end = most + kSpread};
  }

 private:
  static constexpr std::chrono::microseconds kSpread{500};
  // How late a timed sleep ends, besides a share of its length.
  static constexpr std::chrono::microseconds kTimerLateness{150};
  // Longer than any network's round trip: a longer wait is for a peer's work.
  static constexpr std::chrono::milliseconds kLongest{200};

  std::array<Duration, 3> last_{};
  std::size_t next_ = 0;
};

// Decides for one wait of an idle thread whether to yield or to sleep. It yields for a while first,
// and again when the end is expected. Not thread safe.
class IdleWait {
 public:
  static constexpr std::chrono::milliseconds kYieldTime{1};

  IdleWait() = default;
  explicit IdleWait(const ArrivalForecast::Window& expected) : expected_(expected) {}

  // To be called before each yield or sleep. The wait begins with the first call.
  bool should_yield(TimePoint now) {
    if (begin_ == TimePoint{}) begin_ = now;
    const Duration waited = now - begin_;
    return waited < kYieldTime || expected_.contains(waited);
  }
  // The latest time to sleep until.
  TimePoint wake_time(TimePoint now) const {
    return now - begin_ < expected_.begin ? begin_ + expected_.begin : TimePoint::max();
  }
  // The wait has ended: `forecast` remembers it if it was long.
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

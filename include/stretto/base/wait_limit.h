// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"

namespace stretto {

// What ends a blocking call that does not get what it waits for: a deadline, and where the caller
// has one, a reason why waiting on is pointless. Who waits sleeps for no longer than nap(), then
// calls look(), and holds no lock meanwhile: look() may use what is waited for.
class WaitLimit {
 public:
  // Its failure ends the wait. Called by the waiting thread, some twenty times a second.
  using Interruption = std::function<Status()>;

  WaitLimit(Deadline deadline)
      : deadline_(deadline) {}  // NOLINT: most callers have no other limit.
  WaitLimit(Deadline deadline, Interruption interruption)
      : deadline_(deadline), interruption_(std::move(interruption)) {}

  Deadline deadline() const { return deadline_; }
  bool passed() const { return deadline_.passed(); }
  Status look() const { return interruption_ ? interruption_() : Status(); }
  Duration nap() const {
    constexpr Duration kNap = std::chrono::milliseconds(50);
    return interruption_ ? std::min(kNap, deadline_.remaining()) : deadline_.remaining();
  }
  // The same, but for an earlier deadline.
  WaitLimit within(Duration duration) const {
    return {Deadline(std::min(deadline_.time(), Deadline::after(duration).time())), interruption_};
  }

 private:
  Deadline deadline_;
  Interruption interruption_;
};

}  // namespace stretto

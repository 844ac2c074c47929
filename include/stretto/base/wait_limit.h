// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"

namespace stretto {

// Limits how long a blocking call waits: by a deadline and, if the caller has one, by an
// interruption, which fails when waiting longer is pointless. The waiting thread sleeps for at most
// nap(), then calls look(). It holds no lock meanwhile, so look() may use what the thread waits
// for.
class WaitLimit {
 public:
  // A failure that it returns ends the wait. The waiting thread calls it some twenty times a
  // second.
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
  // The same, but ends after `duration` if that is earlier.
  WaitLimit within(Duration duration) const {
    return {Deadline(std::min(deadline_.time(), Deadline::after(duration).time())), interruption_};
  }

 private:
  Deadline deadline_;
  Interruption interruption_;
};

}  // namespace stretto

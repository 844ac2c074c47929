// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <thread>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"

namespace stretto::transport {

// A shortage that is over within this time, such as one of descriptors while a process reads many
// files, is waited out. A longer one is a failure.
inline constexpr std::chrono::seconds kShortageTime(2);

// Tells the one from the other: a caller that waits reports again and again what is lacking now.
class ShortageTimer {
 public:
  // Ok if nothing is lacking, or not for long; else `shortage`.
  Status judge(const Status& shortage) {
    if (shortage.ok()) {
      is_running_ = false;
      return {};
    }
    if (!is_running_) deadline_ = Deadline::after(kShortageTime);
    is_running_ = true;
    return deadline_.passed() ? shortage : Status();
  }

 private:
  bool is_running_ = false;
  Deadline deadline_;
};

// Repeats `attempt` every 20 ms while it fails, for kShortageTime at most. Blocks.
template <class Attempt>
Status retry_shortages(const Attempt& attempt) {
  ShortageTimer timer;
  while (true) {
    const Status shortage = attempt();
    if (shortage.ok()) return {};
    STRETTO_RETURN_IF_ERROR(timer.judge(shortage));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace stretto::transport

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::launch {

// Whether `signal` means what the ranks' program makes of it; the others tell ranks to end.
constexpr bool is_for_programs(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

// The signals that a launcher answers to (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2), to wait for.
// A signal that the launcher was started to ignore, for example by nohup, stays ignored. open()
// blocks the others in the calling thread, and so in all threads started later. It ignores SIGPIPE
// and SIGXFSZ, so that output that cannot be written does not end the launcher.
class Signals {
 public:
  static Result<Signals> open();

  // Waits for the next signal. Empty at the deadline, or when one of `others` is readable. Negative
  // numbers in `others` are skipped.
  std::optional<int> wait(Deadline deadline, const std::vector<int>& others) const;

 private:
  FileDescriptor fd_;
};

}  // namespace stretto::launch

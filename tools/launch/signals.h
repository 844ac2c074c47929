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

// Whether ranks are sent it for their programs' purposes; the others tell them to end.
constexpr bool is_for_programs(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

// The signals a launcher answers to (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2), as something to
// wait for. A signal the launcher was started to ignore, by nohup say, stays ignored. Blocks them
// in the calling thread, and so in all threads that are started later; SIGPIPE and SIGXFSZ are
// ignored: what the launcher cannot write ends nobody.
class Signals {
 public:
  static Result<Signals> open();

  // The next signal; or nothing at the deadline, or when one of `others` can be read. Negative
  // numbers among them are passed over.
  std::optional<int> wait(Deadline deadline, const std::vector<int>& others) const;

 private:
  FileDescriptor fd_;
};

}  // namespace stretto::launch

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "stretto/communicator/communicator.h"
#include "tests/support/failures.h"

namespace stretto::testing {

// For two ranks of run_ranks(), of which rank 0 does nothing: rank 1 waits for it by a timeout
// that is shorter than the communicator's, which it would otherwise have to wait for.
struct OwnTimeout {
  static constexpr std::chrono::milliseconds kTimeout{300};

  // Expects that `act` times out on rank 1; on rank 0, returns when it has.
  void expect_of(const Communicator& communicator, const std::function<void()>& act) {
    if (communicator.rank() == Rank(0)) {
      while (!is_over) std::this_thread::yield();
      return;
    }
    const TimePoint begin = Clock::now();
    expect_contains(message_of<Timeout>(act), "timed out waiting for rank 0");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10)) << "the communicator has 20 s";
    is_over = true;
  }

  std::atomic<bool> is_over{false};
};

}  // namespace stretto::testing

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

// For tests with two ranks of run_ranks(), of which rank 0 does nothing. Rank 1 waits for rank 0
// with a timeout of its own, which is shorter than the communicator's.
struct OwnTimeout {
  static constexpr std::chrono::milliseconds kTimeout{300};

  // On rank 1, expects that `act` times out; on rank 0, returns when it has.
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

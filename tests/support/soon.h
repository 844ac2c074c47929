// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"

namespace stretto {

// The deadline for what takes no time unless something is wrong.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

// Whether `condition` comes true in time. It is called every millisecond, and may work towards it.
template <class Condition>
[[nodiscard]] bool comes_true(const Condition& condition, const Deadline& deadline = soon()) {
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Calls `act`, on a thread of its own, as soon as `condition` comes true. If that takes too long,
// the test fails, and `act` is called all the same, so that ranks that wait for it go on.
class OnceTrue {
 public:
  template <class Condition, class Act>
  OnceTrue(Condition condition, Act act)
      : thread_([condition = std::move(condition), act = std::move(act)] {
          EXPECT_TRUE(comes_true(condition));
          act();
        }) {}
  ~OnceTrue() {
    if (thread_.joinable()) thread_.join();
  }
  // Waits until `act` has returned.
  void join() { thread_.join(); }

 private:
  std::thread thread_;
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"

namespace stretto {

// For what takes no time unless something is wrong.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

// Whether `condition` comes true in time. Asked every millisecond; it may do what makes it so.
template <class Condition>
[[nodiscard]] bool comes_true(const Condition& condition, const Deadline& deadline = soon()) {
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Acts on a thread of its own as soon as `condition` comes true. If it does not in time, that is a
// failure, and it acts all the same, so that ranks which wait for it go on.
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
  // Waits until it has acted.
  void join() { thread_.join(); }

 private:
  std::thread thread_;
};

}  // namespace stretto

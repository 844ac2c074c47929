// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <thread>

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

}  // namespace stretto

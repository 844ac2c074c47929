// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "stretto/base/mutex.h"
#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto {

// Waits until `holds` returns true. It is called with the lock held, first at once and then after
// each notification. Returns false if the limit passes first. Fails if the interruption of `limit`,
// which is called without the lock, fails.
template <class Holds>
Result<bool> wait_until(std::condition_variable& changed, MutexLock& lock, const WaitLimit& limit,
                        const Holds& holds) STRETTO_UNCHECKED_LOCKING {
  while (!holds()) {
    if (limit.passed()) return false;
    lock.unlock();
    const Status looked = limit.look();
    lock.lock();
    STRETTO_RETURN_IF_ERROR(looked);
    // At most an hour: the end of time would overflow inside the system call.
    changed.wait_for(lock.native(), std::min<Duration>(limit.nap(), std::chrono::hours(1)), holds);
  }
  return true;
}

}  // namespace stretto

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

// Waits until `holds`, which is called with the lock held, at first and after each notification.
// False: not before the limit has passed. Fails as the limit's interruption does, which is called
// without the lock.
template <class Holds>
Result<bool> wait_until(std::condition_variable& changed, MutexLock& lock, const WaitLimit& limit,
                        const Holds& holds) STRETTO_UNCHECKED_LOCKING {
  while (!holds()) {
    if (limit.passed()) return false;
    lock.unlock();
    const Status looked = limit.look();
    lock.lock();
    STRETTO_RETURN_IF_ERROR(looked);
    // An hour at most: the end of time would overflow inside the system's call.
    changed.wait_for(lock.native(), std::min<Duration>(limit.nap(), std::chrono::hours(1)), holds);
  }
  return true;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "stretto/base/mutex.h"
#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {

// What a program wants to do when a communicator of its group ends by a failure, as to say what
// it was doing. Any thread.
class AbortHooks {
 public:
  // In the place of the one that had this number.
  void set(int64_t number, AbortHook hook);
  void remove(int64_t number);
  // Calls each, in the order of their numbers, on this thread, which must hold no lock. What one
  // throws is logged.
  void call() const;

 private:
  mutable Mutex mutex_;
  // Functions of Python's may be copied and destroyed only without a lock that others wait for.
  std::map<int64_t, std::shared_ptr<const AbortHook>> hooks_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::c10d_backend

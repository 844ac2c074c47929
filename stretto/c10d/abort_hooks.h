// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "stretto/base/mutex.h"
#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {

// Functions of a program that are called when a communicator of its group ends by a failure, for
// example to say what the program was doing. Any thread.
class AbortHooks {
 public:
  // Replaces the hook that had this number, if there was one.
  void set(int64_t number, AbortHook hook);
  void remove(int64_t number);
  // Calls each hook, in the order of their numbers, on this thread, which must hold no lock. Logs
  // what a hook throws.
  void call() const;

 private:
  mutable Mutex mutex_;
  // Shared, since functions of Python's must not be copied or destroyed under a lock that others
  // wait for.
  std::map<int64_t, std::shared_ptr<const AbortHook>> hooks_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::c10d_backend

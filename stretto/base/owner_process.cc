// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/owner_process.h"

#include <pthread.h>

namespace stretto {

OwnerProcess::OwnerProcess() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { forks_made.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  forks_ = forks_made.load(std::memory_order_relaxed);
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/expedited_barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace stretto::transport {
namespace {

long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }

}  // namespace

bool register_expedited_barrier() {
  static const bool registered = [] {
    const long commands = membarrier(MEMBARRIER_CMD_QUERY);
    constexpr long kNeeded =
        MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    return commands >= 0 && (commands & kNeeded) == kNeeded &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  }();
  return registered;
}

void expedited_barrier() {
  // A compiler must not move accesses across it either.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  (void)membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace stretto::transport

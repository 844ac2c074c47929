// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/uio.h>
#include <unistd.h>

namespace stretto::testing {

// Whether the system lets this process copy from `process`: itself, or one that it was forked from.
inline bool may_copy_from(pid_t process) {
  static int from = 7;
  int to = 0;
  const iovec own{&to, sizeof(to)};
  const iovec theirs{&from, sizeof(from)};
  return ::process_vm_readv(process, &own, 1, &theirs, 1, 0) == sizeof(to);
}

}  // namespace stretto::testing

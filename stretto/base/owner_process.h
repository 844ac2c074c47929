// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>

namespace stretto {

// Remembers the process in which it was made. A child that fork() makes has a copy of everything,
// and shares what must be used by one process only: sockets, and memory that others have mapped.
class OwnerProcess {
 public:
  OwnerProcess();
  // False in a child that has been forked since. No system call; any thread.
  bool is_here() const { return forks_ == forks_made.load(std::memory_order_relaxed); }

 private:
  // How many forks lie between this process and the one that made the first of these.
  static inline std::atomic<std::uint32_t> forks_made{0};

  std::uint32_t forks_;
};

}  // namespace stretto

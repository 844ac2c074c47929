// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>

namespace stretto {

// Remembers the process in which it was made. A child of fork() has a copy of everything, including
// resources that only one process may use: sockets, and memory that other processes have mapped.
class OwnerProcess {
 public:
  OwnerProcess();
  // False in a process that was forked after the object was made. No system call; any thread.
  bool is_here() const { return forks_ == forks_made.load(std::memory_order_relaxed); }

 private:
  // The number of forks between the process that made the first object of this class and this one.
  static inline std::atomic<std::uint32_t> forks_made{0};

  std::uint32_t forks_;
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>

#include "stretto/job/threads.h"
#include "tests/support/on_threads.h"

namespace stretto {

// Calls `function` on each of these ranks, which are threads of this process, with the rank's
// number, and returns when all have returned. Then throws the exception of the lowest rank that
// threw, if any.
inline void run_ranks(const ThreadRanksOptions& options,
                      const std::function<void(Communicator&, int rank)>& function) {
  const auto communicators = make_thread_ranks(options);
  on_threads(communicators.size(),
             [&](std::size_t rank) { function(*communicators[rank], static_cast<int>(rank)); });
}

// The same for `size` ranks on one host.
inline void run_ranks(int size, const std::function<void(Communicator&, int rank)>& function,
                      bool shared_memory = true) {
  run_ranks({.size = size, .shared_memory = shared_memory, .timeout = std::chrono::seconds(20)},
            function);
}

// The same for a function that does not ask which rank it is.
inline void run_ranks(int size, const std::function<void(Communicator&)>& function,
                      bool shared_memory = true) {
  run_ranks(
      size, [&](Communicator& communicator, int) { function(communicator); }, shared_memory);
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <vector>

#include "stretto/job/threads.h"
#include "tests/support/on_threads.h"

namespace stretto {

// Calls `function` on these ranks, which are threads of this process, with the number of the rank,
// and returns when all have returned. Throws what one of them threw. For tests.
inline void run_ranks(const ThreadRanksOptions& options,
                      const std::function<void(Communicator&, int rank)>& function) {
  const auto communicators = make_thread_ranks(options);
  std::vector<std::exception_ptr> thrown(communicators.size());
  on_threads(communicators.size(), [&](std::size_t rank) {
    try {
      function(*communicators[rank], static_cast<int>(rank));
    } catch (...) {
      thrown[rank] = std::current_exception();
    }
  });
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/collective_library.h"
#include "stretto/communicator/communicator.h"

namespace stretto::testing {

// What a test sees of the libraries of a job, and has them do.
struct LibraryFacts {
  std::atomic<int> started = 0;
  std::atomic<int> abandoned = 0;
  std::atomic<bool> is_stuck = false;  // Nothing ends any more.
  std::atomic<bool> has_failed = false;
  std::atomic<int> lacks_memory = -1;  // This rank of a group that is made.
  std::atomic<const std::byte*> last_output = nullptr;
};

// Ranks that are threads, whose collectives a library runs that reads what the others have handed
// it. It does no mean and no f16 or bf16.
std::vector<std::unique_ptr<Communicator>> make_library_ranks(
    int size, const std::shared_ptr<LibraryFacts>& facts, Duration timeout,
    bool gives_buffers_back = false);

}  // namespace stretto::testing

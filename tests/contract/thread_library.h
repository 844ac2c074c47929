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

// What a test sees of the libraries of a job, and what it has them do.
struct LibraryFacts {
  std::atomic<int> started = 0;
  std::atomic<int> abandoned = 0;
  std::atomic<bool> is_stuck = false;  // No operation ends any more.
  std::atomic<bool> has_failed = false;
  std::atomic<int> lacks_memory = -1;  // This rank of a new group lacks memory.
  std::atomic<const std::byte*> last_output = nullptr;
};

// Makes ranks that are threads. A library runs their collectives by reading the buffers of all
// ranks. It runs no mean, and no reduction of f16 or bf16.
std::vector<std::unique_ptr<Communicator>> make_library_ranks(
    int size, const std::shared_ptr<LibraryFacts>& facts, Duration timeout,
    bool gives_buffers_back = false);

}  // namespace stretto::testing

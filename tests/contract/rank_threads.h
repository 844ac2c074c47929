// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "stretto/job/threads.h"

namespace stretto::testing {

// Runs `body` once per rank, each on a thread of its own, and waits for all.
inline void on_all_ranks(std::vector<std::unique_ptr<Communicator>>& ranks,
                         const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stretto::testing

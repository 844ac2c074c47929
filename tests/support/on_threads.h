// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <cstddef>
#include <thread>
#include <vector>

namespace stretto {

// Runs body(0) to body(count - 1), each on a thread of its own, and returns when all have returned.
template <std::integral Count, class Body>
void on_threads(Count count, const Body& body) {
  std::vector<std::thread> threads;
  for (Count i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// The same with each of `items` in place of its number.
template <class Items, class Body>
void on_threads_of(Items& items, const Body& body) {
  on_threads(items.size(), [&](std::size_t i) { body(items[i]); });
}

}  // namespace stretto

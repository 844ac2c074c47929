// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace stretto {

// Runs body(0) to body(count - 1), each on a thread of its own, and returns when all have returned.
// Then throws the exception of the lowest number that threw, if any.
template <std::integral Count, class Body>
void on_threads(Count count, const Body& body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (Count i = 0; i < count; ++i) {
    threads.emplace_back([&body, i, &failure = thrown[static_cast<std::size_t>(i)]] {
      try {
        body(i);
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : thrown) {
    if (failure) std::rethrow_exception(failure);
  }
}

// The same with each item in place of its number.
template <class Items, class Body>
void on_threads_of(Items& items, const Body& body) {
  on_threads(items.size(), [&](std::size_t i) { body(items[i]); });
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A program whose calls are never alike twice does not grow for ever: neither by plans nor by the
// scratch memory of their executions.

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "stretto/job/threads.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

constexpr long kMiB = 1024 * 1024;

void call_all(Communicator& comm, std::vector<float>& data, std::size_t bytes_step, int calls) {
  for (int i = 0; i < calls; ++i) {
    const std::size_t count = bytes_step / sizeof(float) + static_cast<std::size_t>(i);
    comm.all_reduce(std::span(data).first(count), {.algorithm = "ring"}).wait();
  }
}

void call_on_both(std::vector<std::unique_ptr<Communicator>>& ranks, std::size_t bytes, int calls) {
  const auto call = [&](int rank) {
    std::vector<float> data(bytes / sizeof(float) + static_cast<std::size_t>(calls), 1);
    call_all(*ranks[static_cast<std::size_t>(rank)], data, bytes, calls);
  };
  std::thread other(call, 1);
  call(0);
  other.join();
}

TEST(Cache, OfPlansIsBounded) {
  auto ranks = make_thread_ranks({.size = 2, .shared_memory = false});
  call_on_both(ranks, 8192, 1);
  const long bytes = bytes_in_use();
  // Each takes 8 KiB and more on each rank: 50 MiB and more, if all were kept.
  call_on_both(ranks, 8192, 3000);
  EXPECT_LT(bytes_in_use() - bytes, 16 * kMiB);
}

TEST(Cache, OfScratchMemoryIsBounded) {
  auto ranks = make_thread_ranks({.size = 2, .shared_memory = false});
  call_on_both(ranks, 8 * kMiB, 1);
  const long bytes = bytes_in_use();
  // Each has 4 MiB or more of scratch: 400 MiB and more on two ranks, if all were kept.
  call_on_both(ranks, 8 * kMiB, 50);
  EXPECT_LT(bytes_in_use() - bytes, (2 * 64 + 16) * kMiB);
}

}  // namespace
}  // namespace stretto::testing

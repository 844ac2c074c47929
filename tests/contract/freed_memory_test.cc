// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank that gives up an operation may free its buffers at once, while others still work on them.

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/contract/world_ranks.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

// Threads that leave others of their processor little of it.
class Burners {
 public:
  Burners() {
    for (int i = 0; i < 4; ++i) {
      threads_.emplace_back([this] {
        pin_to_first_processor();
        while (!stop_) continue;
      });
    }
  }
  ~Burners() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  static void pin_to_first_processor() {
    cpu_set_t allowed;
    ::sched_getaffinity(0, sizeof(allowed), &allowed);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    CPU_ZERO(&allowed);
    CPU_SET(first, &allowed);
    ::sched_setaffinity(0, sizeof(allowed), &allowed);
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

class FreedMemory : public ::testing::TestWithParam<transport::WorldKind> {};

TEST_P(FreedMemory, StaysWhereAnotherRankStillWorksOnIt) {
  constexpr std::size_t kCount = 1 << 22;
  // They look at their channels every millisecond, whatever their callers do.
  auto ranks = make_world_ranks(GetParam(), 2, milliseconds(1));
  std::optional<Burners> burners;
  on_all(ranks, [&](Communicator& comm) {
    const bool gives_up = comm.rank() == 1;
    auto buffer = std::make_optional(comm.allocate<std::int64_t>(kCount));
    const auto mean = [&](Duration timeout) {
      comm.all_reduce(*buffer, {.op = ReduceOp::mean, .timeout = timeout}).wait();
    };
    for (int round = 0; round < 3; ++round) mean(std::chrono::seconds(10));
    if (!gives_up) {
      Burners::pin_to_first_processor();
      burners.emplace();
    }
    try {
      mean(gives_up ? Duration(milliseconds(5)) : Duration(std::chrono::seconds(10)));
    } catch (const Error&) {
      // Whether it ends in time is not the question.
    }
    if (gives_up) buffer.reset();
    if (!gives_up) burners.reset();
  });
}

INSTANTIATE_TEST_SUITE_P(, FreedMemory, ::testing::ValuesIn(transport::world_kinds()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace stretto::testing

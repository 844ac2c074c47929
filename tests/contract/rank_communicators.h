// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "stretto/job/threads.h"

namespace stretto::testing {

using RankList = std::vector<std::unique_ptr<Communicator>>;

// Runs `body` for every rank, each on a thread of its own, as the processes of a job would.
inline void on_each(RankList& ranks,
                    const std::function<void(std::unique_ptr<Communicator>&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        rank.reset();  // So that the others do not wait for it.
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void on_all(RankList& ranks, const std::function<void(Communicator&)>& body) {
  on_each(ranks, [&](std::unique_ptr<Communicator>& rank) { body(*rank); });
}

// Ranks with mapped memory between them, and ranks that have messages only; each without and with a
// progress thread.
class OnBoth : public ::testing::TestWithParam<std::tuple<bool, ProgressThread>> {
 public:
  static auto both() {
    return ::testing::Combine(::testing::Bool(),
                              ::testing::Values(ProgressThread::never, ProgressThread::always));
  }
  static std::string name(const ::testing::TestParamInfo<ParamType>& tested) {
    const auto [mapped, thread] = tested.param;
    return std::string(mapped ? "mapped" : "messages") +
           (thread == ProgressThread::always ? "_progress_thread" : "");
  }

 protected:
  static RankList make(int size, Duration timeout = std::chrono::seconds(30)) {
    const auto [mapped, thread] = GetParam();
    return make_thread_ranks(
        {.size = size, .shared_memory = mapped, .progress_thread = thread, .timeout = timeout});
  }
};

}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How things go on where a thread finds no memory.

#include <gtest/gtest.h>

#include <pthread.h>

#include <array>
#include <new>
#include <optional>
#include <vector>

#include "stretto/base/error.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/job/threads.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

TEST(AllocationFails, ARankOfThreadsThatCannotBeMadeIsAFailure) {
  const AllocationFailure failure("stretto-rank");
  EXPECT_THROW(make_thread_ranks({.size = 1}), InternalError);
}

TEST(AllocationFails, ALookUpThatCannotTellWhatItHasFoundIsOver) {
  const AllocationFailure failure("stretto-resolve");
  const auto found = bootstrap::resolve("no-such-host.invalid", 1, WaitLimit(Deadline()));
  EXPECT_EQ(found.status().code(), StatusCode::system);
}

// Two ranks that share memory, both on this thread.
class BothRanks {
 public:
  Work start(std::size_t rank) { return ranks_[rank]->all_reduce(data_[rank]); }
  // The same, and the first allocation fails. Nothing: it has thrown for that.
  std::optional<Work> start_with_failure(std::size_t rank) {
    std::array<char, 16> own{};
    ::pthread_getname_np(::pthread_self(), own.data(), own.size());
    const AllocationFailure failure(own.data());
    try {
      return start(rank);
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
  }
  // Drives rank 0 until `work` has ended, but leaves that for somebody to wait for.
  void drive(Work& work) {
    bool has_ended = false;
    work.add_callback([&](const Status&) { has_ended = true; });
    while (!has_ended) ASSERT_FALSE(never_.done());
  }
  void fill(float value) {
    for (auto& data : data_) data.fill(value);
  }
  float sum_on(std::size_t rank) const { return data_[rank].back(); }
  void end() {
    ranks_[1]->send(data_[1], {.to = 0}).wait();
    never_.wait();
  }

 private:
  std::vector<std::unique_ptr<Communicator>> ranks_ =
      make_thread_ranks({.size = 2, .progress_thread = ProgressThread::never});
  std::array<std::array<float, 4>, 2> data_{};
  std::array<float, 4> received_{};
  Work never_ = ranks_[0]->recv(received_, {.from = 1});
};

// The way that takes no lock is free again, and no other rank has seen anything.
TEST(AllocationFails, AnOperationThatLacksItCanBeCalledAgain) {
  BothRanks ranks;
  int thrown = 0;
  // Those that nobody has waited for are not used again.
  std::vector<Work> held;
  for (int call = 0; call < 6; ++call) {
    ranks.fill(1);
    std::optional<Work> first;
    if (call >= 3) first = ranks.start_with_failure(0);
    if (call >= 3 && !first) ++thrown;
    if (!first) first = ranks.start(0);
    Work second = ranks.start(1);
    ranks.drive(*first);
    second.wait();
    EXPECT_EQ(ranks.sum_on(0), 2) << call;
    EXPECT_EQ(ranks.sum_on(1), 2) << call;
    held.push_back(std::move(*first));
  }
  EXPECT_GT(thrown, 0);
  ranks.end();
}

}  // namespace
}  // namespace stretto::testing

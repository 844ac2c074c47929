// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Groups whose collectives a library runs: what it is passed, and what happens on failures. The
// tests of collectives check that its results are right.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "stretto/base/error.h"
#include "tests/contract/rank_communicators.h"
#include "tests/contract/thread_library.h"
#include "tests/support/failures.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Library : public ::testing::TestWithParam<bool> {
 protected:
  RankList make(int size, Duration timeout = seconds(30)) {
    return make_library_ranks(size, facts_, timeout, GetParam());
  }
  const std::shared_ptr<LibraryFacts> facts_ = std::make_shared<LibraryFacts>();
};

TEST_P(Library, RunsWhatItCanAndSchedulesTheRest) {
  auto ranks = make(3);
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> sums(1000, 1.0F);
    comm.all_reduce(sums).wait();
    EXPECT_TRUE(std::ranges::all_of(sums, [](float sum) { return sum == 3; }));
    // The library runs no mean: stretto has it compute the sum, and divides.
    std::vector<std::int32_t> means(1000, comm.rank().value());
    comm.all_reduce(means, {.op = ReduceOp::mean}).wait();
    EXPECT_TRUE(std::ranges::all_of(means, [](std::int32_t mean) { return mean == 1; }));
    EXPECT_EQ(comm.explain(Collective::all_reduce, DType::f32, 1000).algorithm, "threads");
    EXPECT_NE(comm.explain(Collective::all_reduce, DType::bf16, 1000).algorithm, "threads");
  });
  EXPECT_EQ(facts_->started, 2 * 3);
  on_all(ranks, [](Communicator& comm) {
    std::vector<BFloat16> sums(1000, BFloat16(1.0F));
    comm.all_reduce(sums).wait();
    EXPECT_EQ(sums.back(), BFloat16(3.0F));
    std::vector<float> named(1000, 1.0F);
    comm.all_reduce(named, {.algorithm = "direct"}).wait();
    EXPECT_EQ(named.back(), 3);
  });
  EXPECT_EQ(facts_->started, 2 * 3);
}

// The ranks' messages may meet in any order; operations are passed to the library in one order.
TEST_P(Library, IsHandedManyInTheSameOrder) {
  on_all(make(4), [&](Communicator& comm) {
    std::vector<std::vector<std::int64_t>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) buffers.emplace_back(1 + i % 7 * 3000, i);
    for (auto& buffer : buffers) works.push_back(comm.all_reduce(buffer));
    for (Work& work : works) work.wait();
    for (int i = 0; i < 40; ++i) EXPECT_EQ(buffers[static_cast<std::size_t>(i)].back(), 4 * i);
  });
}

TEST_P(Library, IsHandedNothingOnWhichRanksDisagree) {
  on_all(make(3), [](Communicator& comm) {
    std::vector<float> data(comm.rank() == 2 ? 5 : 4);
    const Status status = failure_of([&] { comm.all_reduce(data).wait(); });
    expect_failure(status, StatusCode::mismatch, "rank 2");
  });
  EXPECT_EQ(facts_->started, 0);
}

TEST_P(Library, IsHandedNothingForWhichARankIsLate) {
  std::atomic<int> failed{0};
  on_all(make(3, milliseconds(600)), [&](Communicator& comm) {
    if (comm.rank() == 1) {
      EXPECT_TRUE(comes_true([&] { return failed == 2; }));
      return;
    }
    std::vector<float> data(4);
    const Status status = failure_of([&] { comm.all_reduce(data).wait(); });
    ++failed;
    EXPECT_EQ(status.code(), StatusCode::timeout);
    EXPECT_EQ(status.rank(), Rank(1));
  });
  EXPECT_EQ(facts_->started, 0);
}

// The buffers of a failed operation belong to the caller at once: the library works on copies,
// unless it gives buffers back.
TEST_P(Library, IsAbandonedWhereItDoesNotEnd) {
  auto ranks = make(2, milliseconds(500));
  facts_->is_stuck = true;
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(4);
    const Status status = failure_of([&] { comm.all_reduce(data).wait(); });
    EXPECT_TRUE(status.code() == StatusCode::timeout || status.code() == StatusCode::aborted)
        << status.message();
    const auto* own = reinterpret_cast<const std::byte*>(data.data());
    EXPECT_TRUE(GetParam() || facts_->last_output.load() != own);
  });
  EXPECT_EQ(facts_->started, 2);
  EXPECT_EQ(facts_->abandoned, 2);
}

TEST_P(Library, SaysWhyItHasFailed) {
  auto ranks = make(2);
  facts_->has_failed = true;
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(4);
    const Status status = failure_of([&] { comm.all_reduce(data).wait(); });
    EXPECT_EQ(status.code(), StatusCode::out_of_memory);
    expect_contains(status.message(), "threads says: no memory");
    expect_contains(status.message(), "all_reduce(sum f32 [4])");
  });
}

// The other ranks hear of it, at the latest in the first operation, and do not wait for that rank.
TEST_P(Library, WhatOneRankHasNoMemoryForIsMadeOnNone) {
  auto ranks = make(3);
  facts_->lacks_memory = 1;
  on_all(ranks, [](Communicator& comm) {
    const Status status = failure_of([&] { comm.split({.color = 0})->barrier().wait(); });
    expect_contains(status.message(), "there is no memory left");
  });
}

TEST_P(Library, IsThereForGroupsButNotAfterADeath) {
  auto ranks = make(4);
  on_each(ranks, [&](std::unique_ptr<Communicator>& comm) {
    const Rank rank = comm->rank();
    const auto half = comm->split({.color = rank.value() % 2});
    std::vector<float> data(10, 1.0F);
    half->all_reduce(data).wait();
    EXPECT_EQ(data.back(), 2);
    comm->barrier().wait();
    if (rank == 3) return;
    const auto rest = comm->shrink({3});
    rest->all_reduce(data).wait();
    EXPECT_EQ(data.back(), 6);
    EXPECT_NE(rest->explain(Collective::all_reduce, DType::f32, 10).algorithm, "threads");
  });
}

INSTANTIATE_TEST_SUITE_P(, Library, ::testing::Bool(), [](const auto& tested) {
  return tested.param ? "gives_buffers_back" : "has_copies";
});

}  // namespace
}  // namespace stretto::testing

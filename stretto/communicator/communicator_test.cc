// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What the public interface promises beyond results: order, groups, failures and their texts.

#include "stretto/communicator/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(, OnBoth, OnBoth::both(), OnBoth::name);

TEST_P(OnBoth, TagsMayBeReceivedInAnotherOrder) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> first(100000, 1), second(100000, 2);
    if (comm.rank() == 0) {
      Work one = comm.send(std::span<const std::int32_t>(first), {.to = 1, .tag = 1});
      Work two = comm.send(std::span<const std::int32_t>(second), {.to = 1, .tag = 2});
      one.wait();
      two.wait();
    } else {
      std::vector<std::int32_t> a(100000), b(100000);
      comm.recv(std::span(b), {.from = 0, .tag = 2}).wait();
      comm.recv(std::span(a), {.from = 0, .tag = 1}).wait();
      EXPECT_EQ(a, first);
      EXPECT_EQ(b, second);
    }
  });
}

TEST_P(OnBoth, GivingUpWaitingLeavesTheOperation) {
  auto ranks = make(2);
  std::atomic<bool> waited{false};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<int> data(10, 1);
    if (comm.rank() == 1) {
      while (!waited) std::this_thread::yield();
      comm.all_reduce(std::span(data)).wait();
      return;
    }
    Work work = comm.all_reduce(std::span(data));
    (void)error_of<Timeout>([&] { work.wait_for(std::chrono::milliseconds(20)); });
    EXPECT_FALSE(work.done());
    waited = true;
    work.wait();
    EXPECT_EQ(data[0], 2);
  });
}

TEST_P(OnBoth, AbortEndsEverybodysOperations) {
  on_all(make(3), [](Communicator& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm.abort("loss is NaN");
      return;
    }
    std::vector<float> data(10);
    const std::string text = error_of<Aborted>([&] { comm.all_reduce(std::span(data)).wait(); });
    expect_contains(text, "loss is NaN");
    expect_contains(text, "rank 2");
  });
}

TEST_P(OnBoth, ARankThatLeavesFailsOnlyThoseWhoNeedIt) {
  auto ranks = make(3);
  std::atomic<int> ended{0};
  on_threads_of(ranks, [&](auto& rank) {
    auto pair = rank->new_group({0, 1});
    rank->barrier().wait();
    if (rank->rank() == 2) {
      rank.reset();
      ++ended;
      return;
    }
    while (ended == 0) std::this_thread::yield();
    std::vector<int> data(10, 1);
    pair->all_reduce(std::span(data)).wait();
    EXPECT_EQ(data[0], 2);
    expect_contains(error_of<PeerLost>([&] { rank->barrier().wait(); }), "rank 2");
    pair->barrier().wait();
  });
}

TEST_P(OnBoth, ADestroyedGroupIsToldToThoseWhoStillWaitInIt) {
  on_all(make(3), [](Communicator& comm) {
    auto pair = comm.new_group({0, 1});
    if (comm.rank() == 1) pair.reset();
    if (comm.rank() == 0) {
      const std::string text = error_of<PeerLost>([&] { pair->barrier().wait(); });
      expect_contains(text, "rank 1 has destroyed its communicator");
    }
    auto other = comm.new_group({1, 2});
    std::vector<int> data(5);
    if (comm.rank() == 2) {
      expect_contains(error_of<PeerLost>([&] { other->recv(data, {.from = 0}).wait(); }),
                      "rank 1 has destroyed its communicator");
    }
    if (comm.rank() == 1) other.reset();
    comm.barrier().wait();  // The parent group still works.
  });
}

}  // namespace
}  // namespace stretto::testing

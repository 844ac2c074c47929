// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What the public face promises beyond results: order, groups, failures and their texts.

#include "stretto/communicator/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(, OnBoth, OnBoth::both(), OnBoth::name);

TEST_P(OnBoth, SeveralOperationsInFlightEndInOrderOfSubmission) {
  auto ranks = make(3);
  on_all(ranks, [](Communicator& comm) {
    std::vector<std::vector<float>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      buffers.emplace_back(static_cast<std::size_t>(1 + 5000 * (i % 4)), static_cast<float>(i));
    }
    for (auto& buffer : buffers) works.push_back(comm.all_reduce(std::span(buffer)));
    for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].back(), static_cast<float>(3 * i));
    }
  });
}

TEST_P(OnBoth, AWorkThatIsDroppedWaits) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<int> data(1000, 1);
    { Work dropped = comm.all_reduce(std::span(data)); }
    EXPECT_EQ(data[999], 2);
  });
}

TEST_P(OnBoth, MessagesOfATagKeepTheirOrderWhateverTheirSize) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    const std::vector<std::size_t> sizes = {200000, 1, 70000, 0, 3};
    std::vector<Work> works;
    std::vector<std::vector<std::uint8_t>> buffers;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers.emplace_back(sizes[i], comm.rank() == 0 ? static_cast<std::uint8_t>(i + 1) : 0);
    }
    for (auto& buffer : buffers) {
      works.push_back(comm.rank() == 0
                          ? comm.send(std::span<const std::uint8_t>(buffer), {.to = 1, .tag = 5})
                          : comm.recv(std::span(buffer), {.from = 0, .tag = 5}));
    }
    for (Work& work : works) work.wait();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 0) {
        EXPECT_EQ(buffers[i].back(), i + 1);
      }
    }
  });
}

TEST_P(OnBoth, TagsMayBeReceivedInAnotherOrder) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
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

TEST_P(OnBoth, GroupsRunBesideEachOther) {
  auto ranks = make(4);
  on_all(ranks, [](Communicator& comm) {
    const int r = comm.rank().value();
    auto pair = comm.new_group({1, 0});
    auto odd = comm.new_group({1, 3});
    EXPECT_EQ(pair != nullptr, r < 2);
    EXPECT_EQ(odd != nullptr, r % 2 == 1);
    for (int i = 0; i < 50; ++i) {
      std::vector<int> x(10, r), y(10, r), z(10, r);
      Work all = comm.all_reduce(std::span(x));
      if (pair) pair->all_reduce(std::span(y)).wait();
      if (odd) odd->all_reduce(std::span(z)).wait();
      all.wait();
      EXPECT_EQ(x[9], 6);
      EXPECT_EQ(y[9], pair ? 1 : r);
      EXPECT_EQ(z[9], odd ? 4 : r);
    }
    EXPECT_EQ(pair ? pair->rank().value() : 0, r < 2 ? 1 - r : 0);
  });
}

TEST_P(OnBoth, AnyThreadMaySubmitAndWait) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    auto other = comm.new_group({0, 1});
    std::vector<int> mine(1000), theirs(1000);
    std::thread second([&] {
      for (int i = 0; i < 200; ++i) other->all_reduce(std::span(theirs)).wait();
    });
    for (int i = 0; i < 200; ++i) comm.all_reduce(std::span(mine)).wait();
    second.join();
  });
}

TEST_P(OnBoth, RanksThatDisagreeGetBothCalls) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 100 : 101);
    const std::string text = error_of<Mismatch>([&] { comm.all_reduce(std::span(data)).wait(); });
    expect_contains(text, "all_reduce(sum f32 [100])");
    expect_contains(text, "all_reduce(sum f32 [101])");
    expect_contains(text, "First difference: count");
    // The first failure is repeated.
    EXPECT_EQ(error_of<Mismatch>([&] { comm.barrier().wait(); }), text);
  });
}

TEST_P(OnBoth, AnotherCollectiveIsFoundOutToo) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(100);
    const std::string text = error_of<Mismatch>([&] {
      if (comm.rank() == 0) {
        comm.all_reduce(std::span(data)).wait();
      } else {
        comm.broadcast(std::span(data), {.root = 1}).wait();
        comm.barrier().wait();
      }
    });
    expect_contains(text, "broadcast(f32 [100] root 1)");
  });
}

TEST_P(OnBoth, AReceiveOfAnotherSizeIsAMismatch) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 100000 : 5);
    if (comm.rank() == 0) {
      expect_contains(
          error_of<Mismatch>([&] { comm.send(std::span<const float>(data), {.to = 1}).wait(); }),
          "send/recv(f32 [5])");
    } else {
      const std::string text =
          error_of<Mismatch>([&] { comm.recv(std::span(data), {.from = 0}).wait(); });
      expect_contains(text, "send/recv(f32 [100000])");
    }
  });
}

TEST_P(OnBoth, ALateRankIsNamedWhenTimeIsUp) {
  auto ranks = make(2);
  std::atomic<int> failed{0};
  on_all(ranks, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (failed < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    std::vector<float> data(10);
    const std::string text = error_of<Timeout>([&] {
      comm.all_reduce(std::span(data), {.timeout = std::chrono::milliseconds(100)}).wait();
    });
    ++failed;
    expect_contains(text, "all_reduce(sum f32 [10])");
    expect_contains(text, "timed out waiting for rank 1");
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
  auto ranks = make(3);
  on_all(ranks, [](Communicator& comm) {
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
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  for (auto& rank : ranks) {
    threads.emplace_back([&] {
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
  for (std::thread& thread : threads) thread.join();
}

TEST_P(OnBoth, ADestroyedGroupIsToldToThoseWhoStillWaitInIt) {
  auto ranks = make(3);
  on_all(ranks, [](Communicator& comm) {
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
    comm.barrier().wait();  // The group they were made of lives on.
  });
}

TEST_P(OnBoth, WorkOutlivesItsCommunicator) {
  auto ranks = make(2);
  Work orphan;
  std::vector<float> data(10);
  std::thread other([&] { ranks[1].reset(); });
  orphan = ranks[0]->all_reduce(std::span(data));
  other.join();
  ranks[0].reset();
  EXPECT_FALSE(orphan.wait_status().ok());
}

TEST(Arguments, AreCheckedBeforeAnythingIsSent) {
  auto ranks = make_thread_ranks({.size = 2});
  Communicator& comm = *ranks[0];
  std::vector<float> a(10), b(11);
  std::vector<std::uint8_t> bytes(4);
  const auto invalid = [&](const std::function<void()>& body) {
    return error_of<InvalidArgument>(body);
  };
  expect_contains(invalid([&] { (void)comm.all_reduce(std::span<const float>(a), std::span(b)); }),
                  "the output has 11 elements; it must have 10");
  expect_contains(invalid([&] { (void)comm.all_reduce(std::span(a), {.op = ReduceOp::bit_or}); }),
                  "possible are: sum, mean, product, min, max");
  expect_contains(invalid([&] { (void)comm.all_reduce(std::span(a), {.algorithm = "magic"}); }),
                  "ring");
  expect_contains(invalid([&] { (void)comm.broadcast(std::span(a), {.root = 2}); }), "root 2");
  expect_contains(invalid([&] { (void)comm.send(std::span<const float>(a), {.to = 0}); }),
                  "rank 0");
  expect_contains(invalid([&] { (void)comm.new_group({0, 0}); }), "listed twice");
  expect_contains(invalid([&] { (void)comm.new_group({}); }), "empty");
  expect_contains(invalid([&] {
                    (void)comm.all_reduce(std::span<const float>(a).first(5),
                                          std::span(a).subspan(2, 5));
                  }),
                  "overlap");
}

}  // namespace
}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "tests/contract/rank_communicators.h"
#include "tests/contract/world_ranks.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

// What happens when an exception unwinds the stack through operations in flight: the other ranks
// hear of it at once, and the buffers belong to this rank again.

class Unwinding : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, Unwinding, OnBoth::both(), OnBoth::name);

// Longer than any test here may take, so that no rank is told by a timeout.
constexpr std::chrono::seconds kTimeout(50);

// Runs `body`, which ends in an exception of its own.
void expect_own_exception(const std::function<void()>& body) {
  EXPECT_THROW(body(), std::logic_error);
}
[[noreturn]] void fail_on_own() { throw std::logic_error("no more data"); }

// What a rank is told that waits in `body` for an operation that the unwinding of rank 1 ends.
template <class Exception>
std::string told(const std::function<void()>& body) {
  const TimePoint begin = Clock::now();
  const Status status = failure_of<Exception>(body);
  EXPECT_LT(Clock::now() - begin, kTimeout / 2);
  EXPECT_EQ(status.rank(), Rank(1)) << status.message();
  return std::string(status.message());
}

TEST_P(Unwinding, AnAbandonedCollectiveIsToldToAllRanks) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{300000}}) {
    auto ranks = make(3, kTimeout);
    std::atomic<int> others_ready{0};
    on_all(ranks, [&, count](Communicator& comm) {
      comm.barrier().wait();
      others_ready += comm.rank() == 1 ? 0 : 1;
      const std::string abandoned = std::string("all_reduce(sum f32 [") + std::to_string(count) +
                                    "]) #2 on rank 1: abandoned: an exception";
      if (comm.rank() == 1) {
        expect_own_exception([&] {
          while (others_ready < 2) std::this_thread::yield();
          std::vector<float> data(count);  // Freed soon after the Work.
          Work work = comm.all_reduce(data);
          fail_on_own();
        });
        return expect_contains(told<Aborted>([&] { comm.barrier().wait(); }), abandoned);
      }
      // One rank enters the operation, the other is elsewhere.
      std::vector<float> data(count);
      const auto wait = [&] {
        comm.rank() == 0 ? comm.all_reduce(data).wait() : comm.recv(data, {.from = 0}).wait();
      };
      expect_contains(told<Aborted>(wait), abandoned);
    });
  }
}

TEST_P(Unwinding, AnAbandonedMessageIsToldToAllRanks) {
  on_all(make(3, kTimeout), [](Communicator& comm) {
    std::vector<float> data(100000);
    if (comm.rank() != 1) {
      const std::string text = told<Aborted>([&] { comm.recv(data, {.from = 1}).wait(); });
      return expect_contains(text, "on rank 1: abandoned: an exception");
    }
    expect_own_exception([&] {
      const Transfer transfers[] = {Transfer::recv(data, 0), Transfer::recv(data, 2)};
      Work work = comm.batch_send_recv(transfers);
      fail_on_own();
    });
  });
}

TEST_P(Unwinding, WorksInContainersAndListsAreAbandonedToo) {
  auto ranks = make(2, kTimeout);
  std::atomic<bool> other_ready{false};
  on_all(ranks, [&](Communicator& comm) {
    auto group = comm.new_group({0, 1});
    std::vector<float> a(100), b(200000);
    const View list[] = {as_output(a), as_output(b)};
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        while (!other_ready) std::this_thread::yield();
        std::vector<Work> works;
        works.push_back(comm.all_reduce_coalesced(list));
        works.push_back(group->all_reduce(a));
        fail_on_own();
      });
      return;
    }
    other_ready = true;
    expect_contains(told<Aborted>([&] { comm.recv(a, {.from = 1}).wait(); }), "abandoned");
    expect_contains(told<Aborted>([&] { group->recv(a, {.from = 1}).wait(); }), "abandoned");
  });
}

TEST_P(Unwinding, AChainIsAbandonedWhileItsSecondPartIsBegun) {
  auto ranks = make(2, kTimeout);
  std::atomic<bool> chained{false};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(10), more(10);
    std::atomic<bool> begun{false}, ended{false};
    if (comm.rank() == 0) {
      while (!chained) std::this_thread::yield();
      comm.barrier().wait();
      return expect_contains(told<Aborted>([&] { comm.recv(data, {.from = 1}).wait(); }),
                             "abandoned");
    }
    expect_own_exception([&] {
      // This thread, or a background thread, ends the barrier and begins what follows.
      std::jthread other([&] { (void)comm.recv(more, {.from = 0, .tag = 1}).wait_status(); });
      Work work = comm.barrier().then([&] {
        begun = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        Work second = comm.recv(data, {.from = 0});
        ended = true;
        return second;
      });
      chained = true;
      while (!begun) std::this_thread::yield();
      fail_on_own();
    });
    while (!ended) std::this_thread::yield();
  });
}

// Its destructor abandons a Work that was made before the exception, as a member function would.
struct Forgetful {
  Work work;
  ~Forgetful() { work = Work(); }
};

TEST_P(Unwinding, AssigningToAWorkAbandonsItAsDestroyingDoes) {
  on_all(make(2, kTimeout), [](Communicator& comm) {
    std::vector<float> data(100);
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        Forgetful holder{comm.all_reduce(data)};
        fail_on_own();
      });
      return;
    }
    expect_contains(told<Aborted>([&] { comm.recv(data, {.from = 1}).wait(); }), "abandoned");
  });
}

TEST_P(Unwinding, WhatHasEndedIsNotAbandoned) {
  auto ranks = make(2, kTimeout);
  std::atomic<bool> ended{false};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<std::int32_t> data(10, 1);
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        Work work = comm.all_reduce(data);
        while (!ended) std::this_thread::yield();
        fail_on_own();
      });
      EXPECT_EQ(data.front(), 2);
    } else {
      comm.all_reduce(data).wait();
      ended = true;
    }
    comm.barrier().wait();
  });
}

// Communicates while it is destroyed, also by an exception.
struct Reporter {
  Communicator& comm;
  std::vector<std::int32_t>& data;
  ~Reporter() { Work work = comm.all_reduce(data); }
};

TEST_P(Unwinding, WorksMadeMeanwhileWaitAsEver) {
  on_all(make(2, kTimeout), [](Communicator& comm) {
    std::vector<std::int32_t> data(1000, 1);
    expect_own_exception([&] {
      const Reporter reporter{comm, data};
      if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fail_on_own();
    });
    EXPECT_EQ(data.back(), 2);
    try {
      fail_on_own();
    } catch (const std::logic_error&) {
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Work work = comm.all_reduce(data);
    }
    EXPECT_EQ(data.back(), 4);
    comm.barrier().wait();
  });
}

TEST_P(Unwinding, ACommunicatorWithOperationsInFlightIsAbandoned) {
  auto ranks = make(2, kTimeout);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    std::vector<float> data(100000);
    if (rank->rank() == 1) {
      Work work;
      expect_own_exception([&] {
        const std::unique_ptr<Communicator> comm = std::move(rank);
        work = comm->all_reduce(data);
        fail_on_own();
      });
      EXPECT_EQ(work.wait_status().code(), StatusCode::aborted);
      return;
    }
    const std::string text = told<Aborted>([&] { rank->recv(data, {.from = 1}).wait(); });
    expect_contains(text, "all_reduce(sum f32 [100000]) #1 on rank 1: abandoned: an exception");
  });
}

TEST_P(Unwinding, ADestroyedCommunicatorSaysWhy) {
  auto ranks = make(2, kTimeout);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    rank->barrier().wait();
    if (rank->rank() == 1) {
      return expect_own_exception([&] {
        const std::unique_ptr<Communicator> comm = std::move(rank);
        fail_on_own();
      });
    }
    expect_contains(told<PeerLost>([&] { rank->barrier().wait(); }),
                    "rank 1 has destroyed its communicator because an exception unwound its stack");
  });
}

// Nothing that was begun goes on in buffers that the caller believes to be its own.
TEST_P(Unwinding, AListThatCannotBeBegunAsAWholeFailsOnAllRanks) {
  on_all(make(2, kTimeout), [](Communicator& comm) {
    std::vector<float> data(10);
    if (comm.rank() == 0) {
      EXPECT_THROW(comm.recv(data, {.from = 1}).wait(), OutOfMemory);
      return;
    }
    // The second part needs as much scratch as it has bytes, which nobody has.
    const View list[] = {as_output(data), View(reinterpret_cast<std::byte*>(data.data()),
                                               std::size_t{1} << 52, DType::f32)};
    EXPECT_THROW((void)comm.all_reduce_coalesced(list, {.factor = 0.5}), OutOfMemory);
    EXPECT_THROW(comm.barrier().wait(), OutOfMemory);
  });
}

// What shrink() promises, with ranks that are threads; end_to_end/shrink_test.cc kills processes.

using Values = std::vector<std::int32_t>;

class Shrunk : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, Shrunk, OnBoth::both(), OnBoth::name);
class ShrunkOfAny : public OnEveryKind {};
INSTANTIATE_TEST_SUITE_P(, ShrunkOfAny, OnEveryKind::all(), OnEveryKind::name);

void expect_sum(Communicator& comm, std::int32_t own, std::int32_t sum) {
  Values data(300, own);
  comm.all_reduce(data).wait();
  EXPECT_EQ(data, Values(300, sum));
}

void wait_for(const std::atomic<int>& count, int wanted) {
  while (count < wanted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_P(ShrunkOfAny, GroupsGoOnWithoutTheLost) {
  auto ranks = make(4);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    if (rank->rank() == 1) return rank.reset();
    Values data(10);
    EXPECT_THROW(rank->all_reduce(data).wait(), PeerLost);
    EXPECT_THROW(rank->barrier().wait(), PeerLost);
    auto left = rank->shrink();
    ASSERT_NE(left, nullptr);
    EXPECT_EQ(left->size(), 3);
    EXPECT_EQ(left->rank(), rank->rank() == 0 ? 0 : rank->rank().value() - 1);
    expect_sum(*left, 1 << rank->rank().value(), 1 + 4 + 8);
    // Shrinks once more, although no rank is lost.
    if (rank->rank() == 3) return;
    auto two = left->shrink({3});
    expect_sum(*two, 1 << rank->rank().value(), 1 + 4);
  });
}

// In errors, a rank has its number in the job, whatever the group. shrink() takes that number.
TEST_P(Shrunk, RanksAreLeftOutAsErrorsNameThem) {
  auto ranks = make(4);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    auto group = rank->new_group({3, 1, 2});
    rank->barrier().wait();  // Else it might be aborted while some make it.
    if (rank->rank() == 0) return;
    if (rank->rank() == 1) group->abort("for the test");
    Values data(10);
    const Status status = failure_of<Aborted>([&] {
      while (true) group->all_reduce(data).wait();
    });
    EXPECT_EQ(status.rank(), Rank(1)) << status.message();
    EXPECT_THROW((void)group->shrink({0}), InvalidArgument) << "it is in the job, not in the group";
    expect_contains(error_of<InvalidArgument>([&] {
                      (void)group->shrink({3, 3});
                    }),
                    "rank 3 is listed twice");
    if (rank->rank() == 1) {
      EXPECT_EQ(failure_of<Aborted>([&] { (void)group->shrink(); }).code(), StatusCode::aborted);
      return;
    }
    expect_sum(*group->shrink({*status.rank()}), 1 << rank->rank().value(), 4 + 8);
  });
}

TEST_P(ShrunkOfAny, AGroupThatWasAbortedIsMadeAnew) {
  on_all(make(3), [](Communicator& comm) {
    comm.abort("for the test");
    for (int round = 0; round < 3; ++round) {
      auto again = comm.shrink();
      expect_sum(*again, 1, 3);
    }
    EXPECT_THROW((void)comm.shrink({comm.rank()}), InvalidArgument);
    EXPECT_THROW((void)comm.shrink({7}), InvalidArgument);
  });
}

TEST_P(Shrunk, ListsAreUnitedAndWhoIsOutIsToldByWhom) {
  on_all(make(4), [](Communicator& comm) {
    if (comm.rank() == 3) {
      for (int round = 0; round < 2; ++round) {
        const Status status = failure_of<Aborted>([&] { (void)comm.shrink(); });
        EXPECT_EQ(status.rank(), Rank(1));
        expect_contains(status.message(), "rank 1 has named it");
      }
      return;
    }
    auto left = comm.rank() == 1 ? comm.shrink({3}) : comm.shrink();
    expect_sum(*left, 1, 3);
  });
}

// The number of the next group comes from the agreement, not from how often a rank has called.
TEST_P(Shrunk, WhoWasLeftOutOnceDisturbsNobody) {
  auto ranks = make(3);
  std::atomic<int> through{0};
  on_all(ranks, [&](Communicator& comm) {
    if (comm.rank() == 2) {
      wait_for(through, 2);
      EXPECT_EQ(failure_of<Aborted>([&] { (void)comm.shrink({1}); }).rank(), Rank(0));
      return;
    }
    for (int round = 0; round < 3; ++round) {
      auto left = round == 0 && comm.rank() == 0 ? comm.shrink({2}) : comm.shrink();
      expect_sum(*left, 1, 2);
      if (round == 1) ++through;
    }
  });
}

TEST_P(Shrunk, WhoIsInACollectiveHearsOfIt) {
  on_all(make(3), [](Communicator& comm) {
    if (comm.rank() == 2) {
      Values data(10);
      const Status status = failure_of<Aborted>([&] { comm.all_reduce(data).wait(); });
      expect_contains(status.message(), "has called shrink");
    }
    expect_sum(*comm.shrink(), 1, 3);
  });
}

TEST_P(Shrunk, WhoIsLateIsNamedAndWaitedForAgain) {
  auto ranks = make(3, std::chrono::seconds(2));
  std::atomic<int> late{0};
  on_all(ranks, [&](Communicator& comm) {
    if (comm.rank() == 2) {
      comm.note("loading data");
      wait_for(late, 2);
    } else {
      const Status status = failure_of<Timeout>([&] { (void)comm.shrink(); });
      EXPECT_EQ(status.rank(), Rank(2));
      for (const char* text : {"shrink on rank", "waiting for rank 2 (", "has not called shrink",
                               "loading data", "waited 2."}) {
        expect_contains(status.message(), text);
      }
      ++late;
    }
    std::unique_ptr<Communicator> left;
    while (left == nullptr) {
      try {
        left = comm.shrink();
      } catch (const Timeout&) {  // The machine is busy otherwise.
      }
    }
    expect_sum(*left, 1, 3);
  });
}

// A rank may destroy its communicator instead of calling, at any moment.
TEST_P(Shrunk, WhoLeavesIsNotWaitedFor) {
  Random random(4);
  for (int round = 0; round < 30; ++round) {
    const std::chrono::microseconds pause(random.below(2000));
    auto ranks = make(4);
    on_each(ranks, [&](std::unique_ptr<Communicator>& rank) {
      if (rank->rank() == 0) rank->abort("for the test");
      if (rank->rank() == 2) {
        std::this_thread::sleep_for(pause);
        return rank.reset();
      }
      expect_sum(*rank->shrink(), 1, 3);
    });
  }
}

TEST(ShrunkWorlds, GoOnOverEveryTransport) {
  for (const transport::WorldKind& kind : transport::world_kinds()) {
    RankList ranks = make_world_ranks(kind, 5, std::chrono::milliseconds(20));
    on_each(ranks, [&](std::unique_ptr<Communicator>& rank) {
      const int self = rank->rank().value();
      int mask = 31;
      // One leaves after the other, until two are left.
      for (const int leaving : {3, 0, 4}) {
        if (self == leaving) return rank.reset();
        mask -= 1 << leaving;
        std::unique_ptr<Communicator> left = rank->shrink();
        expect_sum(*left, 1 << self, mask);
        rank = std::move(left);
      }
    });
  }
}

}  // namespace
}  // namespace stretto::testing

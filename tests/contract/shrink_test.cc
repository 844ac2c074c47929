// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What shrink() promises, with ranks that are threads; end_to_end/shrink_test.cc kills processes.

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "stretto/base/random.h"
#include "tests/contract/rank_communicators.h"
#include "tests/contract/world_ranks.h"

namespace stretto::testing {
namespace {

using Values = std::vector<std::int32_t>;

class Shrunk : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, Shrunk, OnBoth::both(), OnBoth::name);

void expect_sum(Communicator& comm, std::int32_t own, std::int32_t sum) {
  Values data(300, own);
  comm.all_reduce(data).wait();
  EXPECT_EQ(data, Values(300, sum));
}

// What the call throws, which must be an `Error`.
template <class Error, class Call>
Status failure_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  ADD_FAILURE() << "threw nothing";
  return {};
}

void wait_for(const std::atomic<int>& count, int wanted) {
  while (count < wanted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_P(Shrunk, GroupsGoOnWithoutTheLost) {
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
    // And once more, without anybody lost.
    if (rank->rank() == 3) return;
    auto two = left->shrink({3});
    expect_sum(*two, 1 << rank->rank().value(), 1 + 4);
  });
}

// Whatever the group, a rank has one number in errors: that in the job. shrink() takes it as it is.
TEST_P(Shrunk, RanksAreLeftOutAsErrorsNameThem) {
  auto ranks = make(4);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    auto group = rank->new_group({3, 1, 2});
    rank->barrier().wait();  // Or some are still making it when it is aborted.
    if (rank->rank() == 0) return;
    if (rank->rank() == 1) group->abort("for the test");
    Values data(10);
    const Status status = failure_of<Aborted>([&] {
      while (true) group->all_reduce(data).wait();
    });
    EXPECT_EQ(status.rank(), Rank(1)) << status.message();
    EXPECT_THROW((void)group->shrink({0}), InvalidArgument) << "it is in the job, not in the group";
    if (rank->rank() == 1) {
      EXPECT_EQ(failure_of<Aborted>([&] { (void)group->shrink(); }).code(), StatusCode::aborted);
      return;
    }
    expect_sum(*group->shrink({*status.rank()}), 1 << rank->rank().value(), 4 + 8);
  });
}

TEST_P(Shrunk, AGroupThatWasAbortedIsMadeAnew) {
  auto ranks = make(3);
  on_all(ranks, [](Communicator& comm) {
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
  auto ranks = make(4);
  on_all(ranks, [](Communicator& comm) {
    if (comm.rank() == 3) {
      for (int round = 0; round < 2; ++round) {
        const Status status = failure_of<Aborted>([&] { (void)comm.shrink(); });
        EXPECT_EQ(status.rank(), Rank(1));
        EXPECT_NE(status.message().find("rank 1 has named it"), std::string_view::npos)
            << status.message();
      }
      return;
    }
    auto left = comm.rank() == 1 ? comm.shrink({3}) : comm.shrink();
    expect_sum(*left, 1, 3);
  });
}

// The number of the next group comes from what was agreed on, not from how often who has called.
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
  auto ranks = make(3);
  on_all(ranks, [](Communicator& comm) {
    if (comm.rank() == 2) {
      Values data(10);
      const Status status = failure_of<Aborted>([&] { comm.all_reduce(data).wait(); });
      EXPECT_NE(status.message().find("has called shrink"), std::string_view::npos)
          << status.message();
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
        EXPECT_NE(status.message().find(text), std::string_view::npos) << status.message();
      }
      ++late;
    }
    std::unique_ptr<Communicator> left;
    while (left == nullptr) {
      try {
        left = comm.shrink();
      } catch (const Timeout&) {  // On a machine that is busy otherwise.
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

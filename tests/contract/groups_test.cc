// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Groups beside, above and inside each other, used by several threads, made and destroyed in any
// order.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <thread>
#include <tuple>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {
namespace {

class Groups : public OnEveryKind {};
INSTANTIATE_TEST_SUITE_P(, Groups, OnEveryKind::all(), OnEveryKind::name);

// Each rank passes in its rank in the job plus one, and expects `sum` over all ranks of the group.
void expect_sums(Communicator& group, Rank job_rank, int sum, std::size_t count = 500) {
  std::vector<std::int32_t> data(count, job_rank.value() + 1);
  group.all_reduce(data).wait();
  EXPECT_EQ(data, std::vector<std::int32_t>(count, sum));
}

TEST_P(Groups, ThatOverlapWorkAtTheSameTimeOnThreadsOfTheirOwn) {
  const std::vector<std::vector<Rank>> lists = {{0, 1, 2, 3}, {0, 1}, {1, 2},
                                                {3, 2, 1},    {3, 0}, {2, 0, 3, 1}};
  on_all(make(4), [&](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const auto& list : lists) groups.push_back(comm.new_group(list));
    on_threads(lists.size() + 1, [&](std::size_t i) {
      for (int round = 0; i == lists.size() && round < 40; ++round) comm.barrier().wait();
      if (i == lists.size() || groups[i] == nullptr) return;
      int sum = 0;
      for (const Rank rank : lists[i]) sum += rank.value() + 1;
      for (std::size_t round = 0; round < 40; ++round) {
        expect_sums(*groups[i], comm.rank(), sum, 1 + round * 700);
      }
    });
  });
}

// Waiting for one group must drive the others, too: the ranks wait for them in opposite orders.
TEST_P(Groups, MayBeWaitedForInAnyOrder) {
  on_all(make(3), [](Communicator& comm) {
    auto first = comm.new_group({0, 1, 2});
    auto second = comm.new_group({2, 1, 0});
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int32_t> a(5000, 1), b(5000, 2);
      const bool forwards = (comm.rank().value() + round) % 2 == 0;
      Work one = forwards ? first->all_reduce(a) : second->all_reduce(b);
      Work two = forwards ? second->all_reduce(b) : first->all_reduce(a);
      two.wait();
      one.wait();
      EXPECT_EQ(a.back(), 3);
      EXPECT_EQ(b.back(), 6);
    }
  });
}

TEST_P(Groups, AreDestroyedInAnyOrder) {
  on_all(make(3), [](Communicator& comm) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int i = 0; i < 5; ++i) groups.push_back(comm.new_group({0, 1, 2}));
      // Each rank destroys them in another order; the groups that are left go on.
      Random random(seed * 3 + static_cast<std::uint64_t>(comm.rank().value()));
      for (std::size_t i = 4; i > 1; --i) std::swap(groups[i], groups[1 + random.below(i)]);
      while (groups.size() > 1) {
        groups.pop_back();
        expect_sums(*groups.front(), comm.rank(), 6);
      }
    }
    comm.barrier().wait();
  });
}

TEST_P(Groups, OutliveTheirParent) {
  auto ranks = make(3);
  on_each(ranks, [](std::unique_ptr<Communicator>& comm) {
    const Rank rank = comm->rank();
    auto child = comm->new_group({0, 2, 1});
    auto grandchild = child->split({.color = rank == 1 ? 1 : 0});
    comm.reset();
    expect_sums(*child, rank, 6);
    child.reset();
    expect_sums(*grandchild, rank, rank == 1 ? 2 : 4);
    grandchild->barrier().wait();
  });
}

TEST_P(Groups, OfGroupsOfGroups) {
  on_all(make(5), [](Communicator& comm) {
    auto four = comm.new_group({4, 3, 2, 1});
    if (four == nullptr) return;
    EXPECT_EQ(four->rank().value(), 4 - comm.rank().value());
    auto three = four->new_group({2, 0, 1});  // Ranks 2, 4 and 3 of the job.
    if (three == nullptr) return;
    auto two = three->new_group({1, 2});  // Ranks 4 and 3 of the job.
    expect_sums(*three, comm.rank(), 3 + 5 + 4);
    EXPECT_EQ(three->job_rank(0), 2);
    EXPECT_EQ(three->job_rank(1), 4);
    EXPECT_EQ(three->job_rank(2), 3);
    EXPECT_THROW((void)three->job_rank(3), InvalidArgument);
    EXPECT_THROW((void)three->job_rank(kAnyRank), InvalidArgument);
    if (two == nullptr) return;
    EXPECT_EQ(two->rank().value(), comm.rank() == 4 ? 0 : 1);
    for (int i = 0; i < 5; ++i) expect_sums(*two, comm.rank(), 9);
    auto one = two->split({.color = two->rank().value()});
    EXPECT_EQ(one->size(), 1);
    expect_sums(*one, comm.rank(), comm.rank().value() + 1);
  });
}

// MPI 4.1, 7.4.2: one group per colour, whose ranks are ordered by key and then by the old rank.
TEST_P(Groups, AreSplitAsTheDefinitionSays) {
  constexpr int kSize = 6;
  on_all(make(kSize), [](Communicator& comm) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      Random random(seed);
      RankVector<SplitOptions> options;
      for (int r = 0; r < kSize; ++r) {
        SplitOptions& own = options.emplace_back();
        if (random.below(5) > 0) own.color = static_cast<int>(random.below(3)) - 1;
        own.key = static_cast<int>(random.below(4)) - 2;
      }
      const auto& mine = options[comm.rank()];
      std::vector<std::tuple<int, int>> order;
      for (int r = 0; r < kSize; ++r) {
        const auto& other = options[r];
        if (other.color && other.color == mine.color) order.emplace_back(other.key, r);
      }
      std::sort(order.begin(), order.end());
      auto group = comm.split(mine);
      ASSERT_EQ(group != nullptr, mine.color.has_value()) << "seed " << seed;
      if (group == nullptr) continue;
      ASSERT_EQ(group->size(), static_cast<int>(order.size())) << "seed " << seed;
      std::vector<std::int32_t> own = {comm.rank().value()};
      std::vector<std::int32_t> all(order.size());
      group->all_gather(own, all).wait();
      for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(all[i], std::get<1>(order[i]));
    }
  });
}

TEST_P(Groups, FailAlone) {
  on_all(make(3), [](Communicator& comm) {
    auto bad = comm.new_group({0, 1, 2});
    auto good = comm.new_group({2, 1, 0});
    if (comm.rank() == 1) bad->abort("on purpose");
    // Either the call is refused, or its operation fails.
    EXPECT_THROW(expect_sums(*bad, comm.rank(), 6), Aborted);
    expect_sums(*good, comm.rank(), 6);
    bad.reset();
    expect_sums(*good, comm.rank(), 6);
    auto again = comm.new_group({0, 1, 2});
    expect_sums(*again, comm.rank(), 6);
  });
}

// A group, groups that were made from it, and operations in those that nobody ends: no rank sends,
// and only rank 0 of `reverse` comes to its barrier.
struct Family {
  std::unique_ptr<Communicator> oldest;
  std::unique_ptr<Communicator> half;     // Of ranks 0 and 1, and of ranks 2 and 3.
  std::unique_ptr<Communicator> reverse;  // The ranks of `half`, reversed.
  std::vector<std::int32_t> data = std::vector<std::int32_t>(2);
  std::vector<Work> in_flight = {};

  explicit Family(Communicator& four)
      : oldest(four.new_group({0, 1, 2, 3})),
        half(oldest->split({.color = four.rank().value() / 2})),
        reverse(half->new_group({1, 0})) {
    const int other = 1 - half->rank().value();
    in_flight.push_back(half->recv(std::span(data).first(1), {.from = other}));
    in_flight.push_back(reverse->recv(std::span(data).last(1), {.from = 1 - other}));
    if (reverse->rank() == 0) in_flight.push_back(reverse->barrier());
  }
  void expect_aborted(const std::string& reason) {
    for (Work& work : in_flight) {
      const Status status = failure_of<Aborted>([&] { work.wait(); });
      expect_contains(status.message(), "rank 1 aborted: " + reason);
    }
    for (Communicator* const group : {half.get(), reverse.get()}) {
      EXPECT_THROW(group->barrier().wait(), Aborted);
    }
  }
};

TEST_P(Groups, EndWithTheOneThatTheyWereMadeOfWhenItIsAborted) {
  on_all(make(4), [](Communicator& comm) {
    auto sibling = comm.new_group({3, 2, 1, 0});
    Family family(comm);
    comm.barrier().wait();
    if (comm.rank() == 1) family.oldest->abort("on purpose");
    family.expect_aborted("on purpose");
    expect_sums(*sibling, comm.rank(), 10);
    expect_sums(*comm.new_group({0, 1, 2, 3}), comm.rank(), 10);
  });
}

TEST_P(Groups, EndSoWhereThatOneIsGoneAlready) {
  on_all(make(4), [](Communicator& comm) {
    Family family(comm);
    comm.barrier().wait();
    if (comm.rank().value() % 2 == 0) family.oldest.reset();
    comm.barrier().wait();
    if (comm.rank() == 1) family.oldest->abort("on purpose");
    family.expect_aborted("on purpose");
    comm.barrier().wait();
  });
}

class GroupTimeouts : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, GroupTimeouts, OnBoth::both(), OnBoth::name);

TEST_P(GroupTimeouts, AreTheirOwnAndThoseOfGroupsMadeOfThem) {
  constexpr std::chrono::milliseconds kShort(200);
  on_all(make(2), [&](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    groups.push_back(comm.new_group({0, 1}, {.timeout = kShort}));
    groups.push_back(comm.split({.color = 0, .timeout = kShort}));
    groups.push_back(groups.back()->new_group({1, 0}));
    auto patient = groups.back()->split({.color = 0, .timeout = std::chrono::minutes(1)});
    auto plain = comm.new_group({0, 1});
    const std::vector<std::int32_t> sent = {7};
    std::list<std::vector<std::int32_t>> received;
    const auto receive_in = [&](Communicator& group) {
      return group.recv(received.emplace_back(1), {.from = 1 - group.rank().value()});
    };
    if (comm.rank() == 0) {
      std::vector<Work> longer;
      for (const auto& group : {patient.get(), plain.get()}) longer.push_back(receive_in(*group));
      const TimePoint begun = Clock::now();
      for (const auto& group : groups) EXPECT_THROW(receive_in(*group).wait(), Timeout);
      EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
      comm.barrier().wait();
      for (Work& work : longer) work.wait();
    } else {
      comm.barrier().wait();
      for (const auto& group : {patient.get(), plain.get()}) {
        group->send(sent, {.to = 1 - group->rank().value()}).wait();
      }
    }
    comm.barrier().wait();
  });
}

class AbortedGroups : public OnBoth {
 protected:
  static void expect_aborted(Communicator& group) {
    std::vector<std::int32_t> data(1);
    const auto receive = [&] {
      group.recv(data, {.from = (group.rank().value() + 1) % group.size()}).wait();
    };
    expect_contains(error_of<Aborted>(receive), "rank 1 aborted: on purpose");
  }
};
INSTANTIATE_TEST_SUITE_P(, AbortedGroups, OnBoth::both(), OnBoth::name);

TEST_P(AbortedGroups, EndThoseOfGroupsThatAreGone) {
  on_all(make(4), [](Communicator& comm) {
    auto oldest = comm.new_group({0, 1, 2, 3});
    auto half = oldest->split({.color = comm.rank().value() / 2});
    auto reverse = half->new_group({1, 0});
    half.reset();
    comm.barrier().wait();
    if (comm.rank() == 1) oldest->abort("on purpose");
    expect_aborted(*reverse);
    comm.barrier().wait();
  });
}

// A failure is that of one group. A later abort() also ends the groups that were made from it.
TEST_P(AbortedGroups, MayHaveFailedBefore) {
  on_all(make(4), [](Communicator& comm) {
    auto oldest = comm.new_group({0, 1, 2, 3});
    auto half = oldest->split({.color = comm.rank().value() / 2});
    comm.barrier().wait();  // Until all have made it, it would fail, too.
    std::vector<std::int32_t> data(1);
    const auto receive = [&] {
      oldest->recv(data, {.from = 3, .timeout = std::chrono::milliseconds(1)}).wait();
    };
    if (comm.rank() == 0) {
      EXPECT_THROW(receive(), Timeout);
    }
    EXPECT_THROW(oldest->barrier().wait(), Timeout);
    comm.barrier().wait();
    expect_sums(*half, comm.rank(), comm.rank().value() / 2 == 0 ? 3 : 7);
    comm.barrier().wait();
    if (comm.rank() == 1) oldest->abort("on purpose");
    expect_aborted(*half);
    EXPECT_THROW(oldest->barrier().wait(), Timeout) << "the first failure";
    comm.barrier().wait();
  });
}

TEST_P(AbortedGroups, DoNotEndWhatShrinkHasMadeOfThem) {
  on_all(make(3), [](Communicator& comm) {
    auto oldest = comm.new_group({0, 1, 2});
    auto middle = oldest->new_group({2, 1, 0});
    auto shrunk = middle->shrink();
    if (comm.rank() == 1) middle->abort("in vain");
    comm.barrier().wait();
    expect_sums(*shrunk, comm.rank(), 6);
    comm.barrier().wait();
    // But it has taken the place of `middle`, which was made from `oldest`.
    if (comm.rank() == 1) oldest->abort("on purpose");
    expect_aborted(*shrunk);
    auto again = shrunk->shrink();
    expect_sums(*again, comm.rank(), 6);
    comm.barrier().wait();
  });
}

TEST_P(AbortedGroups, EndThoseThatAreJustBeingMade) {
  constexpr int kRounds = 30;
  on_all(make(3), [](Communicator& comm) {
    Random random(3);
    for (int round = 0; round < kRounds; ++round) {
      auto oldest = comm.new_group({0, 1, 2});
      std::thread aborting;
      if (comm.rank() == 1) {
        aborting = std::thread([&, work_us = random.below(2000)] {
          const TimePoint until = Clock::now() + std::chrono::microseconds(work_us);
          while (Clock::now() < until) std::this_thread::yield();
          oldest->abort("on purpose");
        });
      }
      EXPECT_THROW(while (true) expect_sums(*oldest->new_group({2, 1, 0}), comm.rank(), 6),
                   Aborted);
      if (aborting.joinable()) aborting.join();
      comm.barrier().wait();
    }
  });
}

// One thread submits the works of one group, and others wait for them.
TEST_P(Groups, WorksMayBeWaitedForOnOtherThreads) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::vector<std::int32_t>> data(60, std::vector<std::int32_t>(300, 1));
    for (int round = 0; round < 5; ++round) {
      std::vector<Work> works;
      for (auto& buffer : data) works.push_back(comm.all_reduce(buffer));
      on_threads(3, [&](std::size_t t) {
        for (std::size_t i = t; i < works.size(); i += 3) works[i].wait();
      });
    }
    for (const auto& buffer : data) EXPECT_EQ(buffer.back(), 32);
  });
}

}  // namespace
}  // namespace stretto::testing

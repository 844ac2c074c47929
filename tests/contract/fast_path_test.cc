// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Collectives that are called again and again on mapped memory take a shorter way than the first
// call does. These tests show what must be the same on both.

#include <gtest/gtest.h>

#include <barrier>
#include <random>
#include <thread>

#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

RankList make_mapped(int size) {
  return make_thread_ranks({.size = size, .timeout = std::chrono::seconds(20)});
}

void expect_sums(Communicator& comm, std::span<float> data, int round) {
  std::vector<Rank> everybody;
  for (int rank = 0; rank < comm.size(); ++rank) everybody.push_back(rank);
  testing::expect_sums(comm, comm.rank(), everybody, data, round);
}

class FastPath : public ::testing::TestWithParam<std::size_t> {
 protected:
  // Rounds of several segments are fewer: each takes long enough for other calls to come between.
  static int rounds() { return GetParam() < 100'000 ? 50 : 10; }
};

TEST_P(FastPath, GivesTheSameSumsWhoeverIsLate) {
  for (const int size : {2, 3, 5}) {
    auto ranks = make_mapped(size);
    on_all(ranks, [](Communicator& comm) {
      std::mt19937 random(static_cast<unsigned>(comm.rank().value()));
      std::vector<float> own(GetParam());
      const auto registered = comm.allocate<float>(GetParam());
      for (int round = 0; round < 60; ++round) {
        // The rank is so late that the others park the operation, or sleep.
        if (random() % 16 == 0) std::this_thread::sleep_for(microseconds(random() % 3000));
        expect_sums(comm, round % 3 == 0 ? std::span(own) : registered.span(), round);
      }
    });
  }
}

TEST_P(FastPath, BuffersMayBeRegisteredOnSomeRanksOnly) {
  auto ranks = make_mapped(3);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> own(GetParam());
    const auto registered = comm.allocate<float>(GetParam());
    for (int round = 0; round < 24; ++round) {
      const bool use_registered = (round / 3 >> comm.rank().value() & 1) != 0;
      expect_sums(comm, use_registered ? registered.span() : std::span(own), round);
    }
  });
}

// Buffers come and go, and later another buffer may lie at the same address.
TEST_P(FastPath, ForgetsWhereBuffersWere) {
  auto ranks = make_mapped(2);
  on_all(ranks, [](Communicator& comm) {
    for (int round = 0; round < 12; ++round) {
      const auto first = comm.allocate<float>(GetParam());
      expect_sums(comm, first.span(), round);
      expect_sums(comm, first.span(), round + 1);
      if (round % 2 == 0) continue;
      const auto second = comm.allocate<float>(GetParam() + 1000);
      expect_sums(comm, second.span().last(GetParam()), round + 2);
      expect_sums(comm, second.span().last(GetParam()), round + 3);
    }
  });
}

TEST_P(FastPath, AMismatchIsToldToAllRanks) {
  auto ranks = make_mapped(3);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(GetParam() + 1);
    for (int round = 0; round < 5; ++round) {
      expect_sums(comm, std::span(data).first(GetParam()), round);
      expect_sums(comm, data, round);
    }
    const std::size_t count = comm.rank() == 1 ? GetParam() : GetParam() + 1;
    const std::string text = error_of([&] {
      comm.all_reduce(std::span(data).first(count)).wait();
      comm.barrier().wait();
    });
    expect_contains(text, "First difference: count");
    expect_contains(text, "#11");
    EXPECT_EQ(error_of([&] { comm.all_reduce(data).wait(); }), text) << "the first failure wins";
  });
}

TEST_P(FastPath, ARankThatLeavesIsNamed) {
  auto ranks = make_mapped(3);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    std::vector<float> data(GetParam());
    for (int round = 0; round < 5; ++round) expect_sums(*rank, data, round);
    if (rank->rank() == 2) return rank.reset();
    const std::string text = error_of([&] { rank->all_reduce(data).wait(); });
    expect_contains(text, "rank 2");
  });
}

TEST_P(FastPath, AbortEndsAnOperationThatIsWaitedFor) {
  auto ranks = make_mapped(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(GetParam());
    for (int round = 0; round < 5; ++round) expect_sums(comm, data, round);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(20));
      return comm.abort("enough");
    }
    const std::string text = error_of([&] { comm.all_reduce(data).wait(); });
    expect_contains(text, "enough");
  });
}

TEST_P(FastPath, SeveralMayBeInFlight) {
  auto ranks = make_mapped(2);
  on_all(ranks, [](Communicator& comm) {
    constexpr std::size_t kWorks = 6;
    std::vector<std::vector<float>> data(kWorks, std::vector<float>(GetParam()));
    for (int round = 0; round < rounds(); ++round) {
      std::vector<Work> works;
      for (auto& each : data) {
        fill_with_whole_numbers(each, comm.rank(), round);
        if (comm.rank() == 1 && round % 8 == 0) std::this_thread::sleep_for(microseconds(300));
        works.push_back(comm.all_reduce(each));
      }
      for (std::size_t w = kWorks; w-- > 0;) works[w].wait();
      const float last = whole_number(3, 2, round, GetParam() - 1);
      for (const auto& each : data) ASSERT_EQ(each.back(), last);
    }
  });
}

// A second thread polls, notes, asks and allocates, all with the engine's lock.
TEST_P(FastPath, RunsBesideEverythingElse) {
  auto ranks = make_mapped(2);
  on_all(ranks, [](Communicator& comm) {
    auto other = comm.split({.color = 0});
    std::atomic<bool> stop{false};
    std::thread beside([&] {
      while (!stop) {
        comm.poll();
        comm.note("beside");
        (void)comm.describe_links();
        (void)comm.allocate<float>(10);
      }
    });
    std::vector<float> data(GetParam());
    const auto registered = comm.allocate<float>(GetParam());
    for (int round = 0; round < rounds(); ++round) {
      expect_sums(comm, data, round);
      expect_sums(*other, registered.span(), round);
    }
    stop = true;
    beside.join();
  });
}

// On a busy machine a rank may be late for a while, and the other one then sleeps each time.
TEST(FastPathCount, TellsHowManyCollectivesTookNoLock) {
  constexpr int kRounds = 300;
  auto ranks = make_mapped(2);
  std::atomic<std::uint64_t> counted{0};
  bool enough = false;
  std::barrier together(2, [&]() noexcept { enough = counted > 0; });
  on_all(ranks, [&](Communicator& comm) {
    const auto count = [&] {
      return comm.explain(Collective::all_reduce, DType::f32, 2).lock_free_runs;
    };
    std::vector<float> small(2);
    std::vector<float> large(kInlineBytes / sizeof(float) + 1);
    for (int round = 0; round < 3; ++round) {
      comm.all_reduce(small, {.algorithm = "staged_mapped"}).wait();
      comm.all_reduce(large).wait();
    }
    EXPECT_EQ(count(), 0u) << "neither what names its algorithm nor what is large";
    for (std::uint64_t attempt = 1; attempt <= 50 && !enough; ++attempt) {
      for (int round = 0; round < kRounds; ++round) comm.all_reduce(small).wait();
      EXPECT_LT(count(), attempt * kRounds) << "the first of a kind takes the lock";
      counted += count();
      together.arrive_and_wait();
    }
  });
  EXPECT_GT(counted, 0u);
}

// The values travel in a post, in staging memory, where one sync becomes two, and in several
// segments.
INSTANTIATE_TEST_SUITE_P(, FastPath, ::testing::Values(2, 6, 7, 300, 5000, 400000),
                         [](const auto& tested) { return std::to_string(tested.param); });

}  // namespace
}  // namespace stretto::testing

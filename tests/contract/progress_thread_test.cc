// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/contract/world_ranks.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

// What a progress thread does while its rank computes. There is no heartbeat here, and nobody waits
// or polls: only the progress thread can end an operation.

using std::chrono::milliseconds;
using std::chrono::seconds;

class WithProgressThread : public ::testing::TestWithParam<transport::WorldKind> {
 protected:
  static RankList make(int size) {
    return make_world_ranks(GetParam(), size, Duration::zero(), std::chrono::seconds(30),
                            ProgressThread::always);
  }
};
INSTANTIATE_TEST_SUITE_P(, WithProgressThread,
                         ::testing::ValuesIn(transport::world_kinds_for_groups()),
                         ::testing::PrintToStringParamName());

// An operation that is asked for nothing but its end.
struct Watched {
  Work work;
  std::atomic<int> code{-1};

  void begin(Work begun) {
    work = std::move(begun);
    work.add_callback([this](const Status& status) { code = static_cast<int>(status.code()); });
  }
  // How it has ended, or -1 if it takes so long that no thread can be driving it.
  int end() const {
    (void)comes_true([&] { return code >= 0; }, Deadline::after(seconds(20)));
    return code;
  }
};
constexpr int kOk = static_cast<int>(StatusCode::ok);

TEST_P(WithProgressThread, OperationsEndWhileTheirCallersCompute) {
  on_all(make(2), [](Communicator& comm) {
    ASSERT_TRUE(comm.has_progress_thread());
    for (const std::size_t count : {std::size_t{10}, std::size_t{1000000}}) {
      const std::vector<std::int32_t> own(count, 3);
      std::vector<std::int32_t> sums(count, 1), gathered(2 * count), message(count);
      Watched reduce, gather, exchange;
      reduce.begin(comm.all_reduce(sums));
      gather.begin(comm.all_gather(own, gathered));
      const Rank other = 1 - comm.rank().value();
      exchange.begin(comm.rank() == 0 ? comm.send(message, {.to = other})
                                      : comm.recv(message, {.from = other}));
      EXPECT_EQ(reduce.end(), kOk);
      EXPECT_EQ(gather.end(), kOk);
      EXPECT_EQ(exchange.end(), kOk);
      EXPECT_EQ(sums.back(), 2);
      EXPECT_EQ(gathered.back(), 3);
    }
  });
}

// The progress thread sleeps as soon as its rank's operation waits for another rank. A lost wake-up
// costs the longest time of a sleep. Returns in how many rounds one may have been lost.
int overslept_rounds(RankList& ranks) {
  constexpr int kRounds = 60;
  constexpr milliseconds kUndisturbed(90);
  std::atomic<int> overslept{0};
  on_all(ranks, [&](Communicator& comm) {
    std::minstd_rand random(7);  // The same on both ranks.
    std::vector<std::int32_t> data(100, 1);
    for (int round = 0; round < kRounds; ++round) {
      const bool late = static_cast<int>(random() % 2) == comm.rank().value();
      const milliseconds pause(random() % 8);
      if (late) std::this_thread::sleep_for(pause);
      Watched reduce;
      const TimePoint begin = Clock::now();
      reduce.begin(comm.all_reduce(data));
      ASSERT_EQ(reduce.end(), kOk);
      if (late && Clock::now() - begin >= kUndisturbed) ++overslept;
    }
  });
  return overslept;
}

// A machine under load looks like a lost wake-up, but not in every block of rounds.
TEST_P(WithProgressThread, ItWakesUpForWhatComesLate) {
  auto ranks = make(2);
  int fewest = overslept_rounds(ranks);
  for (int again = 0; again < 5 && fewest > 1; ++again) {
    fewest = std::min(fewest, overslept_rounds(ranks));
  }
  EXPECT_LE(fewest, 1);
}

TEST_P(WithProgressThread, ManyGroupsAreServedAtOnce) {
  constexpr std::size_t kGroups = 8;
  on_all(make(3), [](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (std::size_t i = 0; i < kGroups; ++i) groups.push_back(comm.new_group({2, 1, 0}));
    std::vector<std::vector<std::int32_t>> data(kGroups, std::vector<std::int32_t>(20000, 1));
    for (int round = 0; round < 3; ++round) {
      std::vector<Watched> watched(kGroups);
      // Each rank submits in another order, from two threads.
      on_threads(2, [&](std::size_t first) {
        for (std::size_t i = first; i < kGroups; i += 2) {
          const std::size_t group = (i + 2 * static_cast<std::size_t>(comm.rank())) % kGroups;
          watched[group].begin(groups[group]->all_reduce(data[group]));
        }
      });
      for (const Watched& one : watched) EXPECT_EQ(one.end(), kOk);
    }
    for (const auto& values : data) EXPECT_EQ(values.back(), 27);
  });
}

TEST_P(WithProgressThread, DeadlinesHoldWhileTheCallerComputes) {
  auto ranks = make(2);
  std::atomic<bool> failed{false};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(10);
    if (comm.rank() == 0) {
      Watched reduce;
      reduce.begin(comm.all_reduce(data, {.timeout = milliseconds(100)}));
      EXPECT_EQ(reduce.end(), static_cast<int>(StatusCode::timeout));
      failed = true;
    }
    while (!failed) std::this_thread::sleep_for(milliseconds(1));
  });
}

TEST_P(WithProgressThread, ARankThatGoesIsNoticedWhileTheCallerComputes) {
  auto ranks = make(3);
  std::atomic<int> begun{0};
  on_each(ranks, [&](std::unique_ptr<Communicator>& rank) {
    if (rank->rank() == 2) {
      while (begun < 2) std::this_thread::yield();
      return rank.reset();
    }
    std::vector<float> data(10);
    Watched reduce;
    reduce.begin(rank->all_reduce(data));
    ++begun;
    EXPECT_EQ(reduce.end(), static_cast<int>(StatusCode::peer_lost));
  });
}

// They are destroyed at every moment: while the thread drives, yields, sleeps, or runs a
// continuation.
TEST_P(WithProgressThread, CommunicatorsAreDestroyedUnderIt) {
  for (int round = 0; round < 20; ++round) {
    auto ranks = make(2);
    on_each(ranks, [round](std::unique_ptr<Communicator>& rank) {
      std::vector<float> data(round % 2 == 0 ? 10 : 200000);
      const bool enters = round % 4 < 2 || rank->rank() == 0;
      Watched reduce;
      if (enters) {
        try {
          reduce.begin(rank->all_reduce(data));
        } catch (const PeerLost&) {
          return;  // The other rank was quicker.
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      rank.reset();
      if (enters) {
        EXPECT_GE(reduce.end(), 0);
      }
    });
  }
}

// A rank that abandons an operation may free its buffers at once, while others still work on them.

// Threads that leave little of a processor to other threads.
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

// Rank 1 abandons an operation that takes too long, and frees its buffer; rank 0 has little of its
// processor. Returns how the operation has ended on each rank, or nothing where the group had
// failed before the call.
std::array<std::optional<StatusCode>, 2> ends_of_abandoned(const transport::WorldKind& kind) {
#ifdef __SANITIZE_THREAD__  // It takes ten times as long for each element.
  constexpr std::size_t kCount = 1 << 19;
#else
  constexpr std::size_t kCount = 1 << 22;
#endif
  // With this heartbeat, ranks look at their channels every millisecond, whatever their callers do.
  auto ranks = make_world_ranks(kind, 2, milliseconds(1));
  std::optional<Burners> burners;
  std::array<std::optional<StatusCode>, 2> codes;
  on_all(ranks, [&](Communicator& comm) {
    const bool abandons = comm.rank() == 1;
    auto buffer = std::make_optional(comm.allocate<std::int64_t>(kCount));
    const auto mean = [&](Duration timeout) -> std::optional<StatusCode> {
      try {
        Work work = comm.all_reduce(*buffer, {.op = ReduceOp::mean, .timeout = timeout});
        return work.wait_status().code();
      } catch (const Error&) {
        return std::nullopt;
      }
    };
    for (int round = 0; round < 3; ++round) EXPECT_EQ(mean(seconds(10)), StatusCode::ok);
    if (!abandons) {
      Burners::pin_to_first_processor();
      burners.emplace();
    }
    comm.barrier().wait();
    codes[static_cast<std::size_t>(comm.rank())] =
        mean(abandons ? Duration(milliseconds(5)) : Duration(seconds(10)));
    if (abandons) buffer.reset();
    if (!abandons) burners.reset();
  });
  return codes;
}

class FreedMemory : public ::testing::TestWithParam<transport::WorldKind> {};

TEST_P(FreedMemory, StaysWhereAnotherRankStillWorksOnIt) {
  constexpr int kAttempts = 20;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto [other, own] = ends_of_abandoned(GetParam());
    if (own != StatusCode::timeout || !other) continue;
    // The other rank may have ended its part before it hears that rank 1 has abandoned it.
    EXPECT_TRUE(other == StatusCode::ok || other == StatusCode::timeout) << name(*other);
    return;
  }
  ADD_FAILURE() << "rank 1 has never abandoned what the other had begun";
}

INSTANTIATE_TEST_SUITE_P(, FreedMemory,
                         ::testing::ValuesIn(transport::world_kinds_where([](const auto& kind) {
                           return kind.shares_memory(0, 1) && !kind.is_mixed;
                         })),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/support/on_threads.h"
#include "tools/bench/measure.h"

namespace stretto::bench {
namespace {

TEST(Statistics, TheMedianIsInTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Statistics, PercentilesAreValuesOfTheSample) {
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  EXPECT_EQ(percentile(hundred, 0.5), 50);
  EXPECT_EQ(percentile(hundred, 1), 100);
  EXPECT_EQ(percentile(hundred, 0), 1);
  // Of twenty values, only the largest is exceeded by at most one in a hundred.
  EXPECT_EQ(percentile(std::vector<double>(hundred.begin(), hundred.begin() + 20), 0.99), 100);
}

TEST(Statistics, AMedianLiesBetweenTheValuesOfTheMiddleRanks) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1);
  const Interval interval = median_interval(values);
  EXPECT_EQ(interval.median, 50.5);
  EXPECT_EQ(interval.low, 41);
  EXPECT_EQ(interval.high, 60);
  values = {3, 1, 2};
  EXPECT_EQ(median_interval(values).low, 1);
  EXPECT_EQ(median_interval(values).high, 3);
  EXPECT_TRUE(std::isnan(median_interval({}).low));
}

TEST(Statistics, TheRegimeNeedsBothEndsOfALine) {
  const auto of = [](double before, double after) {
    return regime({.latency_before_ns = before, .latency_after_ns = after}, false);
  };
  EXPECT_EQ(of(40, 60), "near");
  EXPECT_EQ(of(200, 220), "far");
  EXPECT_EQ(of(40, 220), "mixed");
  EXPECT_EQ(of(0, 0), "unknown");
  EXPECT_EQ(regime({.latency_before_ns = 40, .latency_after_ns = 40}, true), "oversubscribed");
}

// A coordinator of one rank.
class Alone final : public Coordinator {
 public:
  int size() const override { return 1; }
  void barrier() override {}
  double agree(double value) override { return value; }
  void maxima(std::vector<double>&) override {}
  double flag_latency_ns() override { return 0; }
};

void take(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) group::pause();
}

TEST(Measure, TimesTheCallAndNotWhatBelongsToIt) {
  Alone coordinator;
  int prepared = 0;
  int between = 0;
  const Summary summary = measure(
      coordinator, {.seconds = 0.01, .min_samples = 20, .warm_up_seconds = 0.002},
      [&] {
        ++prepared;
        take(std::chrono::microseconds(300));
      },
      [] { take(std::chrono::microseconds(50)); }, [&] { ++between; });
  EXPECT_GE(summary.p50_us, 49);
  EXPECT_LT(summary.min_us, 300);
  EXPECT_LE(summary.min_us, summary.p50_us);
  EXPECT_LE(summary.p50_us, summary.p99_us);
  EXPECT_LE(summary.p99_us, summary.max_us);
  EXPECT_GE(summary.samples, 20U);
  EXPECT_FALSE(summary.batched);
  EXPECT_EQ(between, kBlocks);
  EXPECT_GT(prepared, static_cast<int>(summary.samples));
}

TEST(Measure, ShortCallsAreBatched) {
  Alone coordinator;
  int calls = 0;
  int prepared = 0;
  bool is_fresh = false;
  bool last_was_prepared = false;
  const Summary summary = measure(
      coordinator, {.seconds = 0.005, .min_samples = 20, .warm_up_seconds = 0.001},
      [&] {
        ++prepared;
        is_fresh = true;
      },
      [&] {
        ++calls;
        last_was_prepared = std::exchange(is_fresh, false);
      });
  EXPECT_TRUE(summary.batched);
  EXPECT_LT(summary.p50_us, kBatchedBelowUs);
  EXPECT_GT(calls, prepared + 19 * kCallsPerBatch);
  EXPECT_TRUE(last_was_prepared) << "the last result could not be checked";
}

// A file that is gone at the end.
class BoardFile {
 public:
  explicit BoardFile(int ranks) : fd_(::memfd_create("board-test", MFD_CLOEXEC)) {
    // One core, so that waiting ranks yield early: the machine may have no more.
    Board::format(fd_, ranks, 1);
  }
  ~BoardFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

TEST(Board, BarriersMakeWritesOfOthersVisible) {
  constexpr int kRanks = 3;
  const BoardFile file(kRanks);
  // The counts are atomic for the sanitizers, which take the ranks' mappings for separate memory.
  std::array<std::atomic<int>, kRanks> counts{};
  on_threads(kRanks, [&](int rank) {
    Board board(file.path(), rank);
    for (int round = 1; round <= 200; ++round) {
      counts[static_cast<std::size_t>(rank)].store(round, std::memory_order_relaxed);
      board.barrier();
      for (const auto& count : counts) ASSERT_EQ(count.load(std::memory_order_relaxed), round);
      board.barrier();
    }
  });
}

TEST(Board, RanksAgreeAndKnowTheSlowest) {
  const BoardFile file(2);
  on_threads(2, [&](int rank) {
    Board board(file.path(), rank);
    BoardCoordinator coordinator(board);
    for (int round = 0; round < 50; ++round)
      ASSERT_EQ(coordinator.agree(round + 100 * rank), round);
    std::vector<double> values(kMaxSingles + 5, 1.0 + rank);
    values.back() = 7.0 - rank;
    coordinator.maxima(values);
    EXPECT_EQ(values.front(), 2);
    EXPECT_EQ(values.back(), 7);
  });
}

TEST(Board, WhoWaitsForARankThatGaveUpThrows) {
  const BoardFile file(2);
  on_threads(2, [&](int rank) {
    Board board(file.path(), rank);
    if (rank == 0) {
      EXPECT_THROW(board.barrier(), std::runtime_error);
    } else {
      board.abandon();
    }
  });
}

// The child is like a rank that was killed, and that its launcher has not reaped.
TEST(Board, WhoWaitsForARankThatHasEndedThrows) {
  const BoardFile file(2);
  const pid_t child = ::fork();
  if (child == 0) {
    const Board board(file.path(), 1);
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  Board board(file.path(), 0);
  EXPECT_THROW(board.barrier(), std::runtime_error);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Board, ForeignFilesAreRefused) {
  EXPECT_THROW(Board("/proc/self/exe", 0), std::runtime_error);
  EXPECT_THROW(Board("/nowhere", 0), std::runtime_error);
  const BoardFile file(2);
  EXPECT_THROW(Board(file.path(), 2), std::runtime_error);
}

}  // namespace
}  // namespace stretto::bench

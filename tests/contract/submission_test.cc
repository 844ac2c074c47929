// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Where work is done: what a call that submits an operation does itself, and what a large operation
// costs other groups and ranks. See docs/decisions/0011.
//
// The bounds are many times what is measured on an idle machine, and still far below what a pass
// over the bytes takes. What a call does itself is counted in processor time, since a thread that
// it wakes up may take its core; the best of several attempts counts.

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <thread>

#include "tests/contract/rank_communicators.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLarge = 64 * 1024 * 1024 / sizeof(float);
constexpr int kRounds = 6;
constexpr int kSubmissionsMax = 40;  // Fewer, once all have been quick.
// The limits for one call. With a progress thread, which does all the work, the call queues the
// operation and wakes the thread up. That usually takes a fifth of the first limit, or nearly half
// of it where the cores share no cache. Without one, the call works on 1 MiB, within the second
// limit.
constexpr double kQueuedSeconds = 50e-6;
constexpr double kSubmissionSeconds = 0.5e-3;
// For a list of 64 operations of 1 MiB each: the call queues them, and works on 1 MiB.
constexpr double kListSeconds = 2e-3;
// How much longer eight bytes may take beside large operations than alone, by the best time of
// each. It is some time slices of a scheduler, as other programs may use the cores; each of the
// large operations takes longer.
constexpr double kSmallMoreSeconds = 4e-3;

double best(const std::vector<double>& values) { return *std::ranges::min_element(values); }

template <class Body>
double seconds_of(const Body& body) {
  const TimePoint begin = Clock::now();
  body();
  return seconds(Clock::now() - begin);
}

template <class Body>
double processor_seconds_of(const Body& body) {
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = used();
  body();
  return used() - begin;
}

// Computes as a rank that is late does: a rank that slept instead would find its caches cold.
void compute_for(Duration time) {
  const Deadline end = Deadline::after(time);
  while (!end.passed()) continue;
}

struct Variant {
  const char* name;
  ProgressThread thread;
  bool registered;
};

class Submission : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(, Submission,
                         ::testing::Values(Variant{"thread_registered", ProgressThread::always,
                                                   true},
                                           Variant{"thread_private", ProgressThread::always, false},
                                           Variant{"alone_registered", ProgressThread::never, true},
                                           Variant{"alone_private", ProgressThread::never, false}),
                         [](const auto& tested) { return tested.param.name; });

// This also holds for the last rank to come, which finds all others waiting for it; and for the
// fast path, which the second call of a kind and later ones take.
TEST_P(Submission, OfALargeOperationReturnsBeforeItsBytesArePassedOver) {
  auto ranks = make_thread_ranks({.size = 2, .progress_thread = GetParam().thread});
  const bool queues = GetParam().thread == ProgressThread::always;
  const double limit = queues ? kQueuedSeconds : kSubmissionSeconds;
  std::array<std::vector<double>, 2> first, last;
  const auto is_within = [&](const std::vector<double>& taken) {
    return !taken.empty() && best(taken) < limit;
  };
  bool enough = false;
  std::barrier together(2, [&]() noexcept {
    enough = std::ranges::all_of(first, is_within) && std::ranges::all_of(last, is_within);
  });
  on_all(ranks, [&](Communicator& comm) {
    const auto self = static_cast<std::size_t>(comm.rank());
    std::vector<float> own(GetParam().registered ? 0 : kLarge, 1.0f);
    const auto registered = comm.allocate<float>(GetParam().registered ? kLarge : 1);
    const auto data = GetParam().registered ? registered.span() : std::span(own);
    std::ranges::fill(data, 1.0f);
    for (int round = 0; round < kSubmissionsMax; ++round) {
      together.arrive_and_wait();
      if (enough) break;
      const bool is_last = (round % 2 == 1) == (self == 1);
      if (is_last) compute_for(milliseconds(20));
      Work work;
      const double taken =
          processor_seconds_of([&] { work = comm.all_reduce(data, {.op = ReduceOp::max}); });
      (is_last ? last : first)[self].push_back(taken);
      work.wait();
      ASSERT_EQ(data[kLarge / 2], 1.0f);
    }
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LT(best(first[rank]), limit);
    EXPECT_LT(best(last[rank]), limit);
  }
}

// A list takes no longer than one buffer of its length, although the last rank to come could end
// each of its operations in the call: the root only waits.
TEST_P(Submission, OfALongListReturnsBeforeItsBytesArePassedOver) {
  constexpr std::size_t kEach = kInlineBytes / sizeof(float);
  auto ranks = make_thread_ranks({.size = 2, .progress_thread = GetParam().thread});
  std::barrier together(2);
  std::vector<double> taken;
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> own(GetParam().registered ? 0 : kLarge, 1.0f);
    const auto registered = comm.allocate<float>(GetParam().registered ? kLarge : 1);
    const auto data = GetParam().registered ? registered.span() : std::span(own);
    std::ranges::fill(data, 1.0f);
    std::vector<View> list;
    for (std::size_t first = 0; first < kLarge; first += kEach) {
      list.push_back(as_output(data.subspan(first, kEach)));
    }
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(5));
      Work work;
      const double used =
          processor_seconds_of([&] { work = comm.broadcast_coalesced(list, {.root = 0}); });
      if (comm.rank() == 1) taken.push_back(used);
      work.wait();
    }
  });
  EXPECT_LT(best(taken), kListSeconds);
}

// The header promises that the last rank to come ends small operations in its call.
TEST_P(Submission, OfASmallOperationEndsItInTheCallOfTheLastToCome) {
  auto ranks = make_thread_ranks({.size = 2, .progress_thread = GetParam().thread});
  // This is at most one segment, and the last rank to come needs no more of the others than that.
  const std::size_t count = 32 * 1024 / sizeof(float);
  static_assert(32 * 1024 <= kInlineBytes);
  std::barrier together(2);
  std::atomic<int> ended{0};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(count, 1.0f);
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(5));
      // A broadcast goes one way: the rank that comes last needs nothing that others do afterwards.
      Work work = comm.broadcast(data, {.root = 0});
      std::atomic<bool> was_called{false};
      if (comm.rank() == 1) {
        work.add_callback([&](const Status&) { was_called = true; });
        ended += was_called ? 1 : 0;
      }
      work.wait();
    }
  });
  EXPECT_GT(ended, 0);
}

class BesideLargeOnes : public ::testing::Test {
 protected:
  static constexpr int kLargeOnes = 12;  // At least some tens of milliseconds.
  // Runs `body` on each rank while all-reduces of 64 MiB are under way in another group, on the
  // progress threads. Passes it a group that nobody has used, and the last of the large operations
  // or null.
  template <class Body>
  void run(const Body& body, int large_ones = kLargeOnes) {
    auto ranks = make_thread_ranks({.size = 2, .progress_thread = ProgressThread::always});
    on_all(ranks, [&](Communicator& comm) {
      auto large_group = comm.new_group({0, 1});
      const auto data = comm.allocate<float>(kLarge);
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int round = 0; round < kRounds; ++round) {
        // Kept to the end: a rank that destroys its group tells the other one that it has left.
        Communicator& group = *groups.emplace_back(comm.new_group({0, 1}));
        comm.barrier().wait();
        std::vector<Work> large;
        for (int i = 0; i < large_ones; ++i) large.push_back(large_group->all_reduce(data));
        body(group, large.empty() ? nullptr : &large.back());
        for (Work& work : large) work.wait();
        // A rank that had left earlier would say so in answer to an inquiry.
        comm.barrier().wait();
      }
    });
  }
};

TEST_F(BesideLargeOnes, EightBytesAreNotHeldUp) {
  std::array<std::vector<double>, 2> alone, beside;
  const auto measure_into = [](std::array<std::vector<double>, 2>& taken) {
    return [&taken](Communicator& group, Work* large) {
      std::vector<float> small(2, 1.0f);
      for (int i = 0; i < kRounds; ++i) {
        // With a named algorithm it takes the lock; otherwise it would go the fast path, beside
        // everything.
        const double time =
            seconds_of([&] { group.all_reduce(small, {.algorithm = "staged_mapped"}).wait(); });
        const bool counts = large == nullptr || !large->done();
        if (counts) taken[static_cast<std::size_t>(group.rank())].push_back(time);
      }
    };
  };
  run(measure_into(alone), 0);
  run(measure_into(beside));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_FALSE(beside[rank].empty()) << "the large operations have always ended first";
    EXPECT_LT(best(beside[rank]), best(alone[rank]) + kSmallMoreSeconds);
  }
}

// A rank that waits in vain asks half-way to its deadline what the others do; they have 10 ms.
TEST_F(BesideLargeOnes, AnInquiryIsAnswered) {
  const Duration timeout = milliseconds(20);
  std::atomic<int> answered{0};
  std::atomic<int> asked{0};
  run([&](Communicator& group, Work* large) {
    if (group.rank() == 0) return;
    const Status status = group.barrier({.timeout = timeout}).wait_status();
    ASSERT_EQ(status.code(), StatusCode::timeout) << status.message();
    if (large->done()) return;
    ++asked;
    answered += status.message().find("is in all_reduce") != std::string::npos ? 1 : 0;
  });
  ASSERT_GT(asked, 0) << "the large operations have always ended first";
  EXPECT_GT(answered, 0);
}

}  // namespace
}  // namespace stretto::testing

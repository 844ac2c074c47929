// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What happens when a thread finds no memory.

#include <gtest/gtest.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/scope_exit.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/communicator/symmetric_memory.h"
#include "stretto/job/threads.h"
#include "stretto/transport/shm/memory.h"
#include "tests/allocation/counter.h"
#include "tests/support/on_threads.h"
#include "tests/support/socket_pairs.h"

namespace stretto::testing {
namespace {

TEST(AllocationFails, ARankOfThreadsThatCannotBeMadeIsAFailure) {
  const AllocationFailure failure("stretto-rank");
  EXPECT_THROW(make_thread_ranks({.size = 1}), InternalError);
}

TEST(AllocationFails, ALookUpThatCannotTellWhatItHasFoundIsOver) {
  const AllocationFailure failure("stretto-resolve");
  const auto found = bootstrap::resolve("no-such-host.invalid", 1, WaitLimit(Deadline()));
  EXPECT_EQ(found.status().code(), StatusCode::system);
  EXPECT_TRUE(failure.has_happened());
}

// The other rank waits for what this one says in a fence, whichever of its allocations fails.
TEST(AllocationFails, AFenceEndsOnAllRanks) {
  bool has_happened = true;
  long number = 0;
  while (has_happened) {
    ++number;
    const auto ranks = make_thread_ranks({.size = 2,
                                          .progress_thread = ProgressThread::never,
                                          .timeout = std::chrono::seconds(5),
                                          .hosts = {0, 1}});
    on_threads_of(ranks, [&](const std::unique_ptr<Communicator>& rank) {
      StatusCode code = StatusCode::ok;
      try {  // It may all throw: rank 1 may fail before rank 0 has the memory.
        SymmetricMemory memory(*rank, 8);
        std::array<std::byte, 8> got{};
        memory.get(got, 1 - rank->rank().value(), 0);
        if (rank->rank() == 0) return memory.fence();
        ::pthread_setname_np(::pthread_self(), "stretto-fence");
        const AllocationFailure failure("stretto-fence", number);
        const ScopeExit note([&] { has_happened = failure.has_happened(); });
        memory.fence();
      } catch (const Error& error) {
        code = error.status().code();
      }
      EXPECT_TRUE(code == StatusCode::ok || code == StatusCode::out_of_memory ||
                  code == StatusCode::aborted)
          << number << ": " << name(code);
    });
  }
  EXPECT_GT(number, 5);
}

using ThreadName = std::array<char, 16>;

ThreadName own_name() {
  ThreadName name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return name;
}

// Two ranks that share memory, both on this thread.
class BothRanks {
 public:
  Work start(std::size_t rank) { return ranks_[rank]->all_reduce(data_[rank]); }
  // The same, but the first allocation fails. Returns nothing if the call has thrown because of
  // that.
  std::optional<Work> start_with_failure(std::size_t rank) {
    const ThreadName own = own_name();
    const AllocationFailure failure(own.data());
    try {
      return start(rank);
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
  }
  // Drives rank 0 until `work` has ended, without waiting for `work`.
  void drive(Work& work) {
    bool has_ended = false;
    work.add_callback([&](const Status&) { has_ended = true; });
    while (!has_ended) ASSERT_FALSE(never_.done());
  }
  void fill(float value) {
    for (auto& data : data_) data.fill(value);
  }
  float sum_on(std::size_t rank) const { return data_[rank].back(); }
  void end() {
    ranks_[1]->send(data_[1], {.to = 0}).wait();
    never_.wait();
  }

 private:
  std::vector<std::unique_ptr<Communicator>> ranks_ =
      make_thread_ranks({.size = 2, .progress_thread = ProgressThread::never});
  std::array<std::array<float, 4>, 2> data_{};
  std::array<float, 4> received_{};
  Work never_ = ranks_[0]->recv(received_, {.from = 1});
};

// After the failure, the way without a lock is free again, and no other rank has noticed anything.
TEST(AllocationFails, AnOperationThatLacksItCanBeCalledAgain) {
  BothRanks ranks;
  int thrown = 0;
  // Works that nobody has waited for are not used again.
  std::vector<Work> held;
  for (int call = 0; call < 6; ++call) {
    ranks.fill(1);
    std::optional<Work> first;
    if (call >= 3) first = ranks.start_with_failure(0);
    if (call >= 3 && !first) ++thrown;
    if (!first) first = ranks.start(0);
    Work second = ranks.start(1);
    ranks.drive(*first);
    second.wait();
    EXPECT_EQ(ranks.sum_on(0), 2) << call;
    EXPECT_EQ(ranks.sum_on(1), 2) << call;
    held.push_back(std::move(*first));
  }
  EXPECT_GT(thrown, 0);
  ranks.end();
}

// Repeats a call as long as it throws for lack of memory.
template <class Call>
auto until_there_is_memory(const Call& call) {
  while (true) {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      continue;
    }
  }
}

// Any allocation may fail, also while memory that has been made is freed again.
TEST(AllocationFails, MemoryOfARankCanBeAskedForAgain) {
  const auto ranks = make_thread_ranks({.size = 2, .progress_thread = ProgressThread::never});
  const ThreadName own = own_name();
  long number = 0;
  for (bool has_failed = true; has_failed;) {
    const AllocationFailure failure(own.data(), ++number);
    (void)until_there_is_memory([&] { return ranks[0]->allocate<float>(100); });
    has_failed = failure.has_happened();
  }
  EXPECT_GT(number, 2);
}

// The memory of a rank whose peer on the same host reads nothing.
class MemoryBetweenProcesses : public ::testing::Test {
 protected:
  MemoryBetweenProcesses() {
    const auto channel = std::make_shared<transport::shm::Channel>(std::move(ends_.first));
    for (int i = 0; i < 10000; ++i) channel->ring();  // Until there is no room for more.
    memory_ = std::make_shared<transport::shm::ShmMemory>(
        0, std::vector<std::shared_ptr<transport::shm::Channel>>{nullptr, channel});
  }
  std::pair<FileDescriptor, FileDescriptor> ends_ = make_unix_pair(SOCK_STREAM);
  std::shared_ptr<transport::shm::ShmMemory> memory_;
  const ThreadName own_ = own_name();
};

TEST_F(MemoryBetweenProcesses, LeavesNothingOfWhatCouldNotBeMade) {
  long number = 0;
  for (bool has_failed = true; has_failed;) {
    const AllocationFailure failure(own_.data(), ++number);
    try {
      (void)memory_->allocate(4096).or_throw();
    } catch (const std::bad_alloc&) {
    }
    has_failed = failure.has_happened();
    EXPECT_EQ(memory_->mapped_bytes(), 0u) << number;
  }
  EXPECT_GT(number, 3);
}

TEST_F(MemoryBetweenProcesses, FreeingNeedsNoMemory) {
  for (int round = 0; round < 2; ++round) {
    std::array<transport::Region, 2> regions;
    for (auto& region : regions) region = memory_->allocate(4096).or_throw();
    memory_->service();
    const AllocationFailure failure(own_.data());
    for (auto& region : regions) region = {};
    EXPECT_FALSE(failure.has_happened());
  }
}

struct FirstCalls {
  std::vector<std::int32_t> hosts;  // Of the two ranks.
  long failures;                    // As many allocations in a row fail.
};

class FirstCall : public ::testing::TestWithParam<FirstCalls> {
 protected:
  // How an all-reduce ends on two ranks that have not called one before, where allocations fail
  // from the `number`th on. Returns nothing if there are fewer allocations.
  static std::optional<std::array<Status, 2>> call(long number) {
    std::atomic<int> told = 0;
    const ScopeExit all_told([&] { EXPECT_EQ(told, 3) << number; });  // Once the ranks are gone.
    const auto ranks = make_thread_ranks({.size = 2,
                                          .progress_thread = ProgressThread::never,
                                          .timeout = std::chrono::seconds(5),
                                          .hosts = GetParam().hosts});
    std::array<std::array<float, 4>, 2> data;
    for (auto& each : data) each.fill(1);
    std::array<Work, 2> works;
    {
      const ThreadName own = own_name();
      const AllocationFailure failure(own.data(), number, GetParam().failures);
      for (std::size_t rank = 0; rank < works.size(); ++rank) {
        works[rank] = until_there_is_memory([&] { return start(*ranks[rank], data[rank]); });
      }
      for (const std::size_t rank : {0, 0, 1}) {
        const auto tell = [&](const Status& /*status*/) { ++told; };
        until_there_is_memory([&] { works[rank].add_callback(tell); });
      }
      while (!until_there_is_memory([&] { return have_ended(works); })) {
      }
      if (!failure.has_happened()) return std::nullopt;
    }
    std::array<Status, 2> statuses;
    for (std::size_t rank = 0; rank < works.size(); ++rank) {
      statuses[rank] = works[rank].wait_status();
      EXPECT_TRUE(!statuses[rank].ok() || data[rank].back() == 2) << number;
    }
    return statuses;
  }

 private:
  static Work start(Communicator& rank, std::array<float, 4>& data) {
    try {
      return rank.all_reduce(data);
    } catch (const Error& error) {
      return Work(error.status());
    }
  }
  static bool have_ended(std::array<Work, 2>& works) {
    const bool first = works[0].done();
    return works[1].done() && first;
  }
};

// It ends well, or on both ranks with the reason. A rank without memory for that, too, throws.
TEST_P(FirstCall, EndsWhicheverAllocationFails) {
  const bool may_throw = GetParam().failures > 1;
  long number = 1;
  while (const auto statuses = call(number)) {
    for (const Status& status : *statuses) {
      const StatusCode code = status.code();
      EXPECT_TRUE(status.ok() || code == StatusCode::out_of_memory ||
                  (may_throw && code == StatusCode::aborted))
          << number << ": " << status.message();
    }
    ++number;
  }
  EXPECT_GT(number, 20);
}

INSTANTIATE_TEST_SUITE_P(, FirstCall,
                         ::testing::Values(FirstCalls{{0, 0}, 1}, FirstCalls{{0, 1}, 1},
                                           FirstCalls{{0, 1}, 2}),
                         [](const auto& tested) {
                           const FirstCalls& of = tested.param;
                           return fmt::format("{}_host_failures{}",
                                              of.hosts[1] == 0 ? "one" : "other", of.failures);
                         });

}  // namespace
}  // namespace stretto::testing

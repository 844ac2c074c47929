// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a job on NCCL is told when something goes wrong, within which time, and that nothing goes on
// afterwards that should not. With a double in the place of NCCL and of the device.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "stretto/base/error.h"
#include "stretto/nccl/driver.h"
#include "tests/support/double_ranks.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Of the rank's.
View on_device(const Communicator& rank, std::size_t count) {
  std::byte* const data = Double::get().allocate(count * sizeof(float), rank.device().value());
  std::memset(Double::get().reach(data), 0, count * sizeof(float));
  return {data, count, DType::f32};
}

class NcclDoubleFails : public ::testing::Test {
 protected:
  void SetUp() override { Double::get().reset(); }
  void TearDown() override {
    // Nobody waits for kernels that a test has stopped.
    EXPECT_EQ(Double::get().control().misuse, "");
    Double::get().reset();
  }
};

double seconds_of(const std::function<void()>& body) {
  const TimePoint begun = Clock::now();
  body();
  return stretto::seconds(Clock::now() - begun);
}

// M1: a rank that does not come is named, with what it does, and nothing is launched.
TEST_F(NcclDoubleFails, LateRankIsNamedBeforeAnythingIsLaunched) {
  DoubleRanks ranks({.size = 3});
  std::atomic<int> told{0};
  ranks.on_all([&](Communicator& rank) {
    if (rank.rank() == 2) {
      rank.note("dataloader");
      while (told < 2) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    const std::string text = error_of<Timeout>(
        [&] { rank.all_reduce(on_device(rank, 8), {.timeout = milliseconds(700)}).wait(); });
    expect_contains(text, "all_reduce(sum f32 [8]) #1");
    expect_contains(text, "rank 2");
    ++told;
  });
  EXPECT_EQ(Double::get().control().launches, 0);
}

// M2: ranks that disagree hear of both calls and of the first difference; nothing is launched.
TEST_F(NcclDoubleFails, DisagreementIsFoundBeforeAnythingIsLaunched) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const std::size_t count = rank.rank() == 0 ? 8 : 9;
    const std::string text =
        error_of<Mismatch>([&] { rank.all_reduce(on_device(rank, count)).wait(); });
    expect_contains(text, "all_reduce(sum f32 [8])");
    expect_contains(text, "all_reduce(sum f32 [9])");
    expect_contains(text, "count");
  });
  EXPECT_EQ(Double::get().control().launches, 0);
}

TEST_F(NcclDoubleFails, RanksOnDifferentKindsOfMemoryFindOut) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    std::vector<float> host(8);
    const View data = rank.rank() == 0 ? on_device(rank, 8) : as_output(host);
    const std::string text = error_of<Mismatch>([&] { rank.all_reduce(data).wait(); });
    expect_contains(text, "what is for memory of devices");
  });
  EXPECT_EQ(Double::get().control().launches, 0);
}

// M7: NCCL's kernels wait for a rank that has died, and say nothing; the survivors hear who.
TEST_F(NcclDoubleFails, DeathEndsWhatWaitsOnTheDevice) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 3});
  std::atomic<int> submitted{0};
  std::thread death([&] {
    while (submitted < 3 || Double::get().control().launches < 3) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    ranks.kill(2);
  });
  const double took = seconds_of([&] {
    ranks.on_all([&](Communicator& rank) {
      Work work = rank.all_reduce(on_device(rank, 8));
      ++submitted;
      const Status status = work.wait_status();
      EXPECT_FALSE(status.ok());
      if (rank.rank() == 2) return;  // The dead does not care.
      EXPECT_EQ(status.rank(), Rank(2));
      expect_failure(status, StatusCode::peer_lost, "all_reduce(sum f32 [8]) #1");
    });
  });
  death.join();
  EXPECT_LT(took, 10);
  EXPECT_EQ(Double::get().control().aborts, 3);
  // The survivors go on without it.
  Double::get().change([](auto& control) { control.stalls = false; });
  ranks[2].reset();
  ranks.on_all([&](Communicator& rank) {
    const auto left = rank.shrink();
    EXPECT_EQ(left->size(), 2);
    const View data = on_device(rank, 4);
    reinterpret_cast<float*>(Double::get().reach(data.data))[0] = 21;
    left->all_reduce(data).wait();
    EXPECT_EQ(reinterpret_cast<float*>(Double::get().reach(data.data))[0], 42);
  });
}

// NCCL's own error often is the echo of a death, and comes first. Who has died is what is told.
TEST_F(NcclDoubleFails, EchoOfADeathDoesNotHideWhoHasDied) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  std::thread death([&] {
    while (Double::get().control().launches < 2) std::this_thread::sleep_for(milliseconds(5));
    Double::get().change([](auto& control) { control.failing_rank = 0; });
    std::this_thread::sleep_for(milliseconds(200));
    ranks.kill(1);
  });
  ranks.on_all([&](Communicator& rank) {
    const Status status = rank.all_reduce(on_device(rank, 8)).wait_status();
    if (rank.rank() != 0) return;
    EXPECT_EQ(status.code(), StatusCode::peer_lost) << status.message();
  });
  death.join();
}

TEST_F(NcclDoubleFails, ErrorOfNcclItselfIsToldToAll) {
  DoubleRanks ranks({.size = 2});
  Double::get().change([](auto& control) {
    control.failing_rank = 1;
    control.error = 3;
  });
  ranks.on_all([&](Communicator& rank) {
    const std::string text =
        error_of([&] { rank.all_reduce(on_device(rank, 8), {.timeout = seconds(20)}).wait(); });
    expect_contains(text, "NCCL 2.27.3 says: ");
    expect_contains(text, "said by the double");
    if (rank.rank() == 0) expect_contains(text, "rank 1");
  });
}

// A kernel that never ends: the operation's time is up, NCCL is aborted, and the buffers are free.
TEST_F(NcclDoubleFails, TimeoutAbortsWhatIsOnTheDevice) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const std::string text = error_of(
        [&] { rank.all_reduce(on_device(rank, 8), {.timeout = milliseconds(500)}).wait(); });
    expect_contains(text, "all_reduce(sum f32 [8]) #1");
  });
  EXPECT_EQ(Double::get().control().aborts, 2);
}

TEST_F(NcclDoubleFails, ConnectingHasADeadline) {
  Double::get().reset([](auto& control) { control.stalls_connecting = true; });
  DoubleRanks ranks({.size = 2, .timeout = milliseconds(500)});
  for (const Status& status : ranks.statuses()) {
    EXPECT_FALSE(status.ok());
    expect_contains(status.message(), "could not set up the group");
  }
  EXPECT_EQ(Double::get().control().aborts, 2);
}

TEST_F(NcclDoubleFails, RefusesWhatNcclHasNot) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    View data = on_device(rank, 8);
    data.dtype = DType::i32;
    expect_contains(
        error_of<InvalidArgument>([&] { rank.all_reduce(data, {.op = ReduceOp::bit_xor}).wait(); }),
        "all_reduce: NCCL 2.27.3 has no such reduction for this dtype");
    data.dtype = DType::f32;
    expect_contains(error_of<InvalidArgument>(
                        [&] { rank.all_reduce(data, {.op = ReduceOp::max, .factor = 2}).wait(); }),
                    "multiplies by a factor in sums and means only");
    expect_contains(
        error_of<InvalidArgument>([&] { rank.all_reduce(data, {.algorithm = "ring"}).wait(); }),
        "where no algorithm can be named");
    std::vector<float> host(8);
    expect_contains(error_of<InvalidArgument>([&] { rank.all_reduce(host, data).wait(); }),
                    "some buffers lie in memory of a device and some in memory of the host");
    const Rank other = 1 - rank.rank().value();
    expect_contains(error_of<InvalidArgument>([&] { rank.send(data, {.to = other}).wait(); }),
                    "messages are not moved to or from memory of a device");
    // Nothing has begun, so the group goes on; and so does what is in memory of the host.
    rank.all_reduce(data).wait();
    rank.all_reduce(host).wait();
  });
  EXPECT_EQ(Double::get().control().launches, 2);
}

// NCCL would not look, and a kernel of it might not reach that.
TEST_F(NcclDoubleFails, MemoryOfAnotherDeviceIsRefused) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const View data(Double::get().allocate(8, 5), 2, DType::f32);
    expect_contains(error_of<InvalidArgument>([&] { rank.all_reduce(data).wait(); }),
                    "a buffer lies in memory of device 5, and NCCL 2.27.3 works on device " +
                        std::to_string(rank.rank().value()));
    rank.all_reduce(on_device(rank, 2)).wait();
  });
  EXPECT_EQ(Double::get().control().launches, 2);
}

TEST_F(NcclDoubleFails, NothingBeginsWhileAGraphIsCaptured) {
  DoubleRanks ranks({.size = 2});
  Double::get().change([](auto& control) { control.captures = true; });
  ranks.on_all([&](Communicator& rank) {
    expect_contains(error_of<InvalidArgument>([&] { rank.all_reduce(on_device(rank, 8)).wait(); }),
                    "if a CUDA graph is being captured, end that before");
    rank.barrier().wait();
  });
  EXPECT_EQ(Double::get().control().launches, 0);
  Double::get().change([](auto& control) { control.captures = false; });
  ranks.on_all([&](Communicator& rank) { rank.all_reduce(on_device(rank, 8)).wait(); });
}

// Groups have communicators of their own.
TEST_F(NcclDoubleFails, SplitMakesCommunicators) {
  DoubleRanks ranks({.size = 4});
  ranks.on_all([&](Communicator& rank) {
    const auto half = rank.split({.color = rank.rank().value() % 2});
    const View data = on_device(rank, 2);
    auto* const values = reinterpret_cast<float*>(Double::get().reach(data.data));
    values[0] = static_cast<float>(rank.rank().value());
    half->all_reduce(data).wait();
    EXPECT_EQ(values[0], rank.rank().value() % 2 == 0 ? 2 : 4);
    rank.all_reduce(data).wait();
    EXPECT_EQ(values[0], 12);
  });
}

TEST_F(NcclDoubleFails, OldNcclIsRefusedAndOlderConfigurationsAreKnown) {
  Double::get().reset([](auto& control) { control.version = 21903; });
  const auto refused = double_factory();
  expect_contains(refused.status().message(), "NCCL 2.19.3 is older than 2.20.0");
  Double::get().reset([](auto& control) { control.version = 22005; });
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) { rank.all_reduce(on_device(rank, 8)).wait(); });
}

TEST_F(NcclDoubleFails, WhatTheProgramHasBegunIsWaitedFor) {
  DoubleRanks ranks({.size = 2});
  Double::get().change([](auto& control) { control.longest_delay_us = 100'000; });
  ranks.on_all([&](Communicator& rank) {
    const auto driver = nccl::Driver::open(Double::file(), *rank.device()).or_throw();
    const View from = on_device(rank, 8);
    const View data = on_device(rank, 8);
    reinterpret_cast<float*>(Double::get().reach(from.data))[3] = 1;
    {
      const nccl::Driver::Current current(*driver);
      EXPECT_EQ(driver->call().copy(reinterpret_cast<std::uintptr_t>(data.data),
                                    reinterpret_cast<std::uintptr_t>(from.data), 32, nullptr),
                0);
    }
    rank.all_reduce(data).wait();
    EXPECT_EQ(reinterpret_cast<float*>(Double::get().reach(data.data))[3], 2);
  });
}

}  // namespace
}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What ranks on NCCL are told when something goes wrong, within which time, and that nothing goes
// on afterwards that should not. NCCL and the device are a double.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include "stretto/base/error.h"
#include "stretto/job/device_factory.h"
#include "tests/nccl/on_stream.h"
#include "tests/support/double_ranks.h"
#include "tests/support/failures.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class NcclDoubleFails : public WithDouble {};  // No test waits for kernels that it has stopped.

double seconds_of(const std::function<void()>& body) {
  const TimePoint begun = Clock::now();
  body();
  return stretto::seconds(Clock::now() - begun);
}

// M1: all ranks are told which rank is late and what it does. Nothing is launched.
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

// M2: ranks that disagree are told both calls and the first difference. Nothing is launched.
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

// A copy from or to host memory may wait for all work on the stream.
TEST_F(NcclDoubleFails, WhatIsCopiedFromTheHostHasTheStreamToItself) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  std::barrier looked(2);
  ranks.on_all([&](Communicator& rank) {
    const bool is_first = rank.rank() == 0;
    std::vector<float> own(is_first ? 3 : 7, 1.0f), all(is_first ? 4 : 6);
    using Counts = std::vector<std::size_t>;
    Work exchanged = rank.all_to_all(own, all,
                                     {.send_counts = is_first ? Counts{1, 2} : Counts{3, 4},
                                      .recv_counts = is_first ? Counts{1, 3} : Counts{2, 4}});
    Work reduced = rank.all_reduce(on_device(rank, 8));
    const Deadline end = Deadline::after(milliseconds(100));
    while (!end.passed()) rank.poll();
    EXPECT_EQ(Double::get().control().launches, 2);
    looked.arrive_and_wait();
    Double::get().change([](auto& control) { control.stalls = false; });
    exchanged.wait();
    reduced.wait();
    EXPECT_EQ(std::ranges::count(all, 1.0f), std::ssize(all));
  });
}

// The engine does not wait either; otherwise other groups could not go on.
TEST_F(NcclDoubleFails, WhatIsCopiedFromTheHostBeginsWhenTheProgramIsThere) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const auto part = rank.split({.color = 0});
    const std::size_t sent = rank.rank() == 0 ? 1 : 2;
    std::vector<float> own(2 * sent, 1.0f), all(3), host(8);
    Double::get().delay_program(*rank.device(), milliseconds(800));
    Work exchanged;
    const double took = seconds_of([&] {
      exchanged = rank.all_to_all(own, all, {.send_counts = {sent, sent}, .recv_counts = {1, 2}});
      part->all_reduce(host).wait();
    });
    EXPECT_LT(took, 0.5);
    EXPECT_FALSE(exchanged.done());
    exchanged.wait();
    EXPECT_EQ(all, std::vector<float>(3, 1.0f));
  });
}

// M7: NCCL's kernels wait for a rank that has died, and do not return. The survivors are told which
// rank it is.
TEST_F(NcclDoubleFails, DeathEndsWhatWaitsOnTheDevice) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 3});
  std::atomic<int> submitted{0};
  OnceTrue death([&] { return submitted == 3 && Double::get().control().launches >= 3; },
                 [&] { ranks.kill(2); });
  const double took = seconds_of([&] {
    ranks.on_all([&](Communicator& rank) {
      Work work = rank.all_reduce(on_device(rank, 8));
      ++submitted;
      const Status status = work.wait_status();
      EXPECT_FALSE(status.ok());
      if (rank.rank() == 2) return;  // The dead rank is not checked.
      EXPECT_EQ(status.rank(), Rank(2));
      expect_failure(status, StatusCode::peer_lost, "all_reduce(sum f32 [8]) #1");
    });
  });
  death.join();
  EXPECT_LT(took, 10);
  EXPECT_EQ(Double::get().control().aborts, 3);
  // The survivors go on without rank 2.
  Double::get().change([](auto& control) { control.stalls = false; });
  ranks[2].reset();
  ranks.on_all([&](Communicator& rank) {
    const auto left = rank.shrink();
    EXPECT_EQ(left->size(), 2);
    const View data = on_device(rank, 4);
    reach(data)[0] = 21;
    left->all_reduce(data).wait();
    EXPECT_EQ(reach(data)[0], 42);
  });
}

// An abort waits for everything on the device, so the abort of one group must not hold up another
// group's abort.
TEST_F(NcclDoubleFails, DeathEndsWhatWaitsOnTheDeviceInSeveralGroups) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  OnceTrue death([] { return Double::get().control().launches >= 4; }, [&] { ranks.kill(1); });
  ranks.on_all([&](Communicator& rank) {
    const auto part = rank.split({.color = 0});
    Work first = rank.all_reduce(on_device(rank, 8));
    Work second = part->all_reduce(on_device(rank, 8));
    EXPECT_EQ(first.wait_status().code(), StatusCode::peer_lost);
    EXPECT_EQ(second.wait_status().code(), StatusCode::peer_lost);
  });
  death.join();
  EXPECT_EQ(Double::get().control().aborts, 4);
}

// So a group after its timeout may get its buffers back only when another group does.
TEST_F(NcclDoubleFails, WhoWaitsForAnAbortMayGiveUpAndAbortWhatItWaitsFor) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const auto part = rank.split({.color = 0});
    Work first = rank.all_reduce(on_device(rank, 8), {.timeout = milliseconds(300)});
    Work second = part->all_reduce(on_device(rank, 8));
    while (Double::get().control().launches < 4) rank.poll();
    const double gave_up =
        seconds_of([&] { error_of<Timeout>([&] { first.wait_for(seconds(1)); }); });
    EXPECT_LT(gave_up, 3);
    part->abort("enough");
    EXPECT_EQ(second.wait_status().code(), StatusCode::aborted);
    EXPECT_EQ(first.wait_status().code(), StatusCode::timeout);
  });
}

TEST_F(NcclDoubleFails, WhoDestroysAGroupLetsOthersAbortWhatItWaitsFor) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    auto part = rank.split({.color = 0});
    Work first = rank.all_reduce(on_device(rank, 8));
    Work second = part->all_reduce(on_device(rank, 8));
    while (Double::get().control().launches < 4) rank.poll();
    std::thread other([&] { part.reset(); });
    EXPECT_TRUE(comes_true([] { return Double::get().control().aborts >= 2; }));
    EXPECT_LT(seconds_of([&] { rank.abort("enough"); }), 3);
    EXPECT_EQ(first.wait_status().code(), StatusCode::aborted);
    other.join();
    EXPECT_EQ(second.wait_status().code(), StatusCode::aborted);
  });
}

// NCCL's own error is often a consequence of a death, and comes first. Ranks must be told who died.
TEST_F(NcclDoubleFails, EchoOfADeathDoesNotHideWhoHasDied) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  OnceTrue death([] { return Double::get().control().launches >= 2; },
                 [&] {
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

// A kernel never ends. When the operation's time is up, NCCL is aborted, and the buffers are free.
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

// The stream is full until the death is found, which would never happen if the thread that waits
// for room held up all others.
TEST_F(NcclDoubleFails, AStreamThatIsFullHoldsUpNobodyElse) {
  Double::get().reset([](auto& control) { control.stalls = true; });
  DoubleRanks ranks({.size = 2});
  OnceTrue death([] { return Double::get().control().waits_for_room > 0; }, [&] { ranks.kill(1); });
  ranks.on_all([&](Communicator& rank) {
    Work work = rank.all_reduce(on_device(rank, 8), {.timeout = seconds(20)});
    if (rank.rank() == 1) return (void)work.wait_status();
    const OnStream program(rank);
    Double::get().change([&](auto& control) {
      control.full_stream = program.stream();
      control.full_device = *rank.device();
    });
    const StreamGuard on_stream(program.stream());
    (void)work.wait_on_device();
    EXPECT_EQ(work.wait_status().code(), StatusCode::peer_lost) << work.wait_status().message();
  });
  death.join();
  EXPECT_EQ(Double::get().control().waits_for_room, 1);
}

TEST_F(NcclDoubleFails, NoMemoryForCopiesIsNotCalledAFailureOfNccl) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const View data = on_device(rank, 8);
    rank.barrier().wait();
    Double::get().change([](auto& control) { control.has_no_memory = true; });
    const Status status = rank.all_to_all(data, data).wait_status();
    expect_failure(status, StatusCode::out_of_memory, "the device has no 16 bytes left");
    EXPECT_EQ(status.message().find("NCCL"), std::string_view::npos) << status.message();
  });
}

TEST_F(NcclDoubleFails, ConnectingHasADeadline) {
  Double::get().reset([](auto& control) { control.stalls_connecting = true; });
  expect_contains(error_of<Error>([] { DoubleRanks({.size = 2, .timeout = milliseconds(500)}); }),
                  "could not set up the group");
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
    // Nothing has begun, so the group goes on, and so do operations on host memory.
    rank.all_reduce(data).wait();
    rank.all_reduce(host).wait();
  });
  EXPECT_EQ(Double::get().control().launches, 2);
}

// NCCL would not check, and its kernel might not be able to access the memory.
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

// Each group has its own NCCL communicator.
TEST_F(NcclDoubleFails, SplitMakesCommunicators) {
  DoubleRanks ranks({.size = 4});
  ranks.on_all([&](Communicator& rank) {
    const auto half = rank.split({.color = rank.rank().value() % 2});
    const View data = on_device(rank, 2);
    reach(data)[0] = static_cast<float>(rank.rank().value());
    half->all_reduce(data).wait();
    EXPECT_EQ(reach(data)[0], rank.rank().value() % 2 == 0 ? 2 : 4);
    rank.all_reduce(data).wait();
    EXPECT_EQ(reach(data)[0], 12);
  });
}

TEST_F(NcclDoubleFails, OldNcclIsRefused) {
  Double::get().reset([](auto& control) { control.version = 22602; });
  const auto refused = job::nccl_factory(nccl_variables());
  expect_contains(refused.status().message(), "NCCL 2.26.2 is older than 2.27.0");
}

}  // namespace
}  // namespace stretto::testing

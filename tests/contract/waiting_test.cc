// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Operations that wait for others: what is logged meanwhile, and who is named in the end.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>

#include "stretto/base/error.h"
#include "tests/contract/world_ranks.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::kind_named;

constexpr seconds kTimeout(60);

class FirstCause : public ::testing::TestWithParam<transport::WorldKind> {};

// The receiver finds a mismatch, throws, and is gone with its communicator. The sender, and a third
// rank that waits for the receiver, hear why.
TEST_P(FirstCause, OfAMessageIsToldBeforeItsReceiverHasGone) {
  auto worlds = make_world_ranks(GetParam(), 3, milliseconds(100), kTimeout);
  for (int round = 0; round < 40; ++round) {
    on_all(worlds, [&](Communicator& world) {
      const auto comm = world.new_group({0, 1, 2});
      world.barrier().wait();
      std::vector<float> data(40'000);
      const std::size_t count = round % 2 == 0 ? 4 : data.size();
      const Status status = failure_of([&] {
        if (world.rank() == 0) comm->send(std::span(data).first(count), {.to = 1}).wait();
        if (world.rank() == 1) comm->recv(std::span(data).first(count / 2), {.from = 0}).wait();
        comm->recv(data, {.from = world.rank() == 0 ? 2 : 1}).wait();
      });
      EXPECT_EQ(status.code(), StatusCode::mismatch) << status.message();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, FirstCause, ::testing::ValuesIn(transport::world_kinds_for_groups()),
                         ::testing::PrintToStringParamName());

// Ranks that have begun different numbers of operations may meet in operations that are equal.
TEST(Ahead, ARankThatIsAheadIsNotTakenForOneThatIsNot) {
  auto worlds = make_world_ranks(kind_named("loopback"), 3, milliseconds(100), kTimeout);
  on_all(worlds, [&](Communicator& comm) {
    std::vector<float> data(4);
    const Status status = failure_of([&] {
      // Rank 2 is a leaf of a tree: its reduce ends as soon as its message has left.
      if (comm.rank() == 2) comm.reduce(data, {.root = 0, .algorithm = "direct"}).wait();
      comm.all_reduce(data).wait();
      comm.all_reduce(data).wait();
      while (true) comm.barrier().wait();
    });
    EXPECT_EQ(status.code(), StatusCode::mismatch) << status.message();
  });
}

// From now on these ranks answer nothing, like processes that are stopped.
std::vector<std::unique_ptr<group::EngineLock>> stop(
    std::span<const std::shared_ptr<group::Engine>> engines) {
  std::vector<std::unique_ptr<group::EngineLock>> held;
  for (const auto& engine : engines) held.push_back(std::make_unique<group::EngineLock>(*engine));
  return held;
}

// In a ring each rank waits for the one before it. A rank that waits for a silent one is not to
// blame.
TEST(Waiting, OfAChainThatEndsInSilenceTheSilentRankIsNamed) {
  transport::World world = kind_named("tcp").make({.ranks = 5});
  std::vector<std::shared_ptr<group::Engine>> engines;
  RankList ranks = make_ranks(world.endpoints, {.heartbeat = milliseconds(100)},
                              {.timeout = kTimeout}, &engines);
  const auto held = stop(std::span(engines).subspan(2, 2));
  std::vector<std::vector<float>> data(5, std::vector<float>(50));
  std::vector<Work> works;
  for (const std::size_t r : {1, 4, 0}) {
    const auto timeout = r == 0 ? Duration(milliseconds(2000)) : Duration(kTimeout);
    works.push_back(ranks[r]->all_reduce(data[r], {.algorithm = "ring", .timeout = timeout}));
  }
  const Status status = works.back().wait_status();
  EXPECT_EQ(status.rank(), Rank(3)) << status.message();
  expect_failure(status, StatusCode::timeout, "timed out waiting for rank 3, which ");
}

// About a message, only the rank at its other end is asked, then the ranks for which that one
// waits.
TEST(Waiting, OfAChainOfMessagesTheRankAtItsEndIsNamed) {
  auto worlds = make_world_ranks(kind_named("tcp"), 4, milliseconds(100), kTimeout);
  std::vector<std::vector<float>> data(4, std::vector<float>(50));
  std::vector<Work> works;
  for (const int r : {2, 1, 0}) {
    const auto timeout = r == 0 ? Duration(milliseconds(3000)) : Duration(kTimeout);
    works.push_back(worlds[static_cast<std::size_t>(r)]->recv(data[static_cast<std::size_t>(r)],
                                                              {.from = r + 1, .timeout = timeout}));
  }
  const Status status = works.back().wait_status();
  EXPECT_EQ(status.rank(), Rank(3)) << status.message();
  expect_failure(status, StatusCode::timeout,
                 "timed out waiting for rank 1, which is in send/recv(");
  expect_contains(status.message(),
                  "), waiting for rank 2; rank 3, which has called no collective");
}

TEST(Waiting, OfTwoThatWaitForEachOtherTheOtherIsNamed) {
  auto worlds = make_world_ranks(kind_named("tcp"), 2, milliseconds(100), kTimeout);
  std::vector<float> first(4), second(4);
  Work other = worlds[1]->recv(second, {.from = 0});
  const Status status =
      worlds[0]->recv(first, {.from = 1, .timeout = milliseconds(1500)}).wait_status();
  EXPECT_EQ(status.rank(), Rank(1)) << status.message();
  expect_contains(status.message(), "timed out waiting for rank 1, which is in send/recv(");
}

// A root that sends large messages receives nothing.
TEST(Waiting, WhoOnlySendsWaitsForThoseWhoDoNotTakeIt) {
  transport::World world = kind_named("tcp").make({.ranks = 3});
  std::vector<std::shared_ptr<group::Engine>> engines;
  RankList ranks = make_ranks(world.endpoints, {.heartbeat = milliseconds(100)},
                              {.timeout = kTimeout}, &engines);
  const auto held = stop(std::span(engines).subspan(1));
  std::vector<float> data(100'000);
  const Status status =
      ranks[0]
          ->broadcast(data, {.root = 0, .algorithm = "direct", .timeout = milliseconds(1500)})
          .wait_status();
  EXPECT_EQ(status.rank(), std::nullopt) << status.message();
  expect_failure(status, StatusCode::timeout, "timed out waiting for rank 1, which");
  expect_contains(status.message(), "; rank 2, which");
}

// Lets `bytes` bytes a second out of the socket.
void limit_rate(int socket, unsigned bytes) {
  ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof(bytes)), 0);
}

class CrawlingNetwork : public ::testing::TestWithParam<int> {};

// Questions and answers crawl behind a message from rank 0 to rank 1. Rank 2 gets answers.
TEST_P(CrawlingNetwork, IsToldFromARankThatDoesNotAnswer) {
  const int impatient = GetParam();
  transport::World world = kind_named("tcp").make(
      {.ranks = 3, .socket_buffer_bytes = 16 * 1024, .network_timeout = seconds(2)});
  const int socket = world.sockets[0][1];
  RankList ranks =
      make_ranks(world.endpoints, {.heartbeat = milliseconds(100)}, {.timeout = kTimeout});
  limit_rate(socket, 20'000);
  on_all(ranks, [&](Communicator& comm) {
    const bool is_impatient = comm.rank() == impatient;
    const Duration timeout = is_impatient ? Duration(seconds(4)) : kTimeout;
    std::vector<float> data(250'000);
    const auto pass = [&] {
      if (comm.rank() == 0) comm.send(data, {.to = 1, .timeout = timeout}).wait();
      if (comm.rank() > 0) comm.recv(data, {.from = 0, .timeout = timeout}).wait();
    };
    // The message may arrive before the news of the failure.
    if (!is_impatient) return (void)message_of<Error>(pass);
    const Status status = failure_of(pass);
    limit_rate(socket, ~0u);
    EXPECT_EQ(status.code(), StatusCode::timeout) << status.message();
    expect_lacks(status.message(), "it is stopped");
    const std::array<std::string_view, 3> begins = {
        "for rank 1, which has not answered, and ",
        "for rank 0, which has not answered, and a message of rank 0 still arrives, of late at ",
        "for rank 0, which is in send/recv(f32 [250000]), waiting for rank 1, and "};
    expect_contains(status.message(), begins[static_cast<std::size_t>(impatient)]);
    if (impatient == 1) return;
    expect_contains(status.message(), " KiB for rank 1 are still under way, of late at ");
    expect_contains(status.message(), " KiB/s: the network is slow, not the rank");
  });
}
INSTANTIATE_TEST_SUITE_P(SaysRank, CrawlingNetwork, ::testing::Range(0, 3));

TEST(Waiting, ALossBetweenOperationsSaysAfterWhich) {
  transport::World world = kind_named("tcp").make({.ranks = 2});
  RankList ranks =
      make_ranks(world.endpoints, {.heartbeat = milliseconds(100)}, {.timeout = kTimeout});
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(4);
    comm.all_reduce(data).wait();
  });
  world.kill(1);
  Status lost;
  do {  // An unknown algorithm is refused as long as the group has not failed.
    std::this_thread::sleep_for(milliseconds(20));
    lost = failure_of([&] { ranks[0]->barrier({.algorithm = "none such"}).wait(); });
  } while (lost.code() == StatusCode::invalid_argument);
  expect_contains(lost.message(),
                  "between operations, after all_reduce(sum f32 [4]) #1: lost rank");
}

// It is said once per operation, long before its time is up, and not about operations behind it.
TEST(Waiting, IsSaidInTheLogBeforeTheDeadline) {
  transport::World world = kind_named("tcp").make({.ranks = 3});
  RankList ranks =
      make_ranks(world.endpoints, {.heartbeat = milliseconds(100), .warn_after = milliseconds(800)},
                 {.timeout = kTimeout});
  ::testing::internal::CaptureStderr();
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(4), other(4);
    if (comm.rank() == 1) {
      comm.note("loading data");
      std::this_thread::sleep_for(milliseconds(1400));
    }
    Work first = comm.all_reduce(data);
    Work second = comm.all_reduce(other);
    first.wait();
    second.wait();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const int waiting : {0, 2}) {
    const std::string begin =
        "all_reduce(sum f32 [4]) #1 on rank " + std::to_string(waiting) + " has waited ";
    expect_contains(said, begin);
    EXPECT_EQ(said.find(begin), said.rfind(begin)) << said;
  }
  expect_contains(said, "for rank 1, which has called no collective");
  expect_contains(said, "in its own code: loading data; 1 of 2 others has arrived");
  expect_lacks(said, "#2");
}

// The longest duration means never.
TEST(Waiting, IsNotSaidInTheLogWhereTheProgramWantsNoWarning) {
  transport::World world = kind_named("loopback").make({.ranks = 2});
  RankList ranks =
      make_ranks(world.endpoints, {.heartbeat = milliseconds(20), .warn_after = Duration::max()},
                 {.timeout = kTimeout});
  ::testing::internal::CaptureStderr();
  on_all(ranks, [&](Communicator& comm) {
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
    comm.barrier().wait();
  });
  expect_lacks(::testing::internal::GetCapturedStderr(), "has waited");
}

// The rank is like a process that is stopped, and goes on when its deadline has passed.
TEST(Waiting, WhoHasStoodStillBlamesItself) {
  transport::World world = kind_named("tcp").make({.ranks = 2});
  std::vector<std::shared_ptr<group::Engine>> engines;
  RankList ranks = make_ranks(world.endpoints, {.heartbeat = milliseconds(100)},
                              {.timeout = kTimeout}, &engines);
  std::vector<float> data(4);
  Work work = ranks[0]->all_reduce(data, {.timeout = milliseconds(700)});
  {
    const group::EngineLock held(*engines[0]);
    std::this_thread::sleep_for(milliseconds(1500));
  }
  const Status status = work.wait_status();
  EXPECT_EQ(status.rank(), Rank(0));
  expect_failure(status, StatusCode::timeout, "this rank itself has stood still for 1.");
}

// A message that has arrived meanwhile is in time. No heartbeat reads it first.
TEST(Waiting, WhoHasSleptPastItsDeadlineReadsFirst) {
  transport::World world = kind_named("tcp").make({.ranks = 2});
  std::vector<std::shared_ptr<group::Engine>> engines;
  RankList ranks = make_ranks(world.endpoints,
                              {.progress_thread = ProgressThread::never, .heartbeat = seconds(10)},
                              {.timeout = kTimeout}, &engines);
  constexpr seconds kShort(1);
  std::array<std::vector<float>, 2> data{std::vector<float>(4), std::vector<float>(4)};
  Work first = ranks[0]->all_reduce(data[0], {.timeout = kShort});
  const TimePoint passed = Clock::now() + kShort;
  std::thread waiter([&] { (void)first.wait_status(); });
  std::this_thread::sleep_for(milliseconds(100));  // By then it sleeps.
  Work second;
  {
    const group::EngineLock held(*engines[0]);
    second = ranks[1]->all_reduce(data[1]);
    std::this_thread::sleep_until(passed + milliseconds(1));
  }
  waiter.join();
  EXPECT_TRUE(first.wait_status().ok()) << first.wait_status().message();
  EXPECT_TRUE(second.wait_status().ok()) << second.wait_status().message();
}

TEST(Waiting, NoTimeoutIsNegative) {
  auto ranks = make_thread_ranks({.size = 2});
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(4);
    const std::optional<Duration> none = milliseconds(-3000);
    for (int i = 0; i < 2; ++i) {  // The second time, the fast path would be open.
      comm.all_reduce(data).wait();
      for (const Status& status :
           {failure_of([&] { comm.all_reduce(data, {.timeout = none}).wait(); }),
            failure_of([&] { comm.barrier({.timeout = none}).wait(); }), failure_of([&] {
              comm.recv(data, {.from = 1 - comm.rank().value(), .timeout = none}).wait();
            })}) {
        expect_failure(status, StatusCode::invalid_argument, "timeout: -3 s is negative");
      }
    }
    Work work = comm.barrier();
    EXPECT_EQ(failure_of([&] { work.wait_for(milliseconds(-1)); }).code(),
              StatusCode::invalid_argument);
    work.wait();
  });
  EXPECT_THROW(make_thread_ranks({.size = 1, .timeout = milliseconds(-1)}), InvalidArgument);
}

TEST(ThreadRanks, AreAsManyAsTheirHosts) {
  EXPECT_THROW(make_thread_ranks({.size = -1}), InvalidArgument);
  EXPECT_THROW(make_thread_ranks({.size = 0}), InvalidArgument);
  expect_contains(failure_of([] {
                    make_thread_ranks({.size = 3, .hosts = {0, 1}});
                  }).message(),
                  "2 numbers of hosts for 3 ranks");
  EXPECT_THROW(make_thread_ranks({.size = 1, .hosts = {0, 1}}), InvalidArgument);
}

TEST(ThreadRanks, RefuseANameThatNoAlgorithmHas) {
  expect_contains(
      failure_of([] { make_thread_ranks({.size = 2, .algorithm = "rings"}); }).message(),
      "make_thread_ranks: rings is no algorithm; there are: ring, direct, ");
  make_thread_ranks({.size = 2, .algorithm = "pairwise"});  // Only all_to_all has it.
}

}  // namespace
}  // namespace stretto::testing

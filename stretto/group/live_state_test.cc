// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/live_state.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/group/group.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/held_plane.h"
#include "tests/support/soon.h"

namespace stretto::group {
namespace {

using std::chrono::milliseconds;

TEST(WaitTime, GrowsWhileAtLeastOneThreadWaits) {
  WaitTime waited;
  EXPECT_FALSE(WaitTime::is_anybody_waiting());
  EXPECT_EQ(waited.total(), Duration::zero());
  waited.begin();
  waited.begin();
  waited.end();
  EXPECT_TRUE(WaitTime::is_anybody_waiting());
  std::this_thread::sleep_for(milliseconds(1));
  const Duration amid = waited.total();
  EXPECT_GE(amid, milliseconds(1)) << "the other still waits";
  waited.end();
  EXPECT_FALSE(WaitTime::is_anybody_waiting());
  const Duration total = waited.total();
  EXPECT_GE(total, amid) << "it has shrunk";
  std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(waited.total(), total);
}

// A thread that takes turns keeps the lock as long as each turn moves something.
TEST(LiveState, IsReportedWhileThereIsAlwaysSomethingToDo) {
  auto plane = std::make_unique<transport::HeldPlane>();
  transport::HeldPlane& library = *plane;
  transport::Endpoint::Parts parts{.rank = 0, .data_plane = std::move(plane)};
  parts.links = RankVector<std::unique_ptr<transport::Link>>(1);
  std::atomic<int> reports{0};
  const auto engine = Engine::create(transport::Endpoint::create(std::move(parts)).or_throw(),
                                     {.progress_thread = ProgressThread::always,
                                      .heartbeat = milliseconds(10),
                                      .report_live_state = [&](const LiveState&) { ++reports; }})
                          .or_throw();
  library.moves = true;
  const int before_wait = reports;
  EXPECT_TRUE(engine->drive([&] { return reports >= before_wait + 5; }, soon()));
  {
    const EngineLock held(*engine);
    engine->submitted();
  }
  const int before_drive = reports;
  EXPECT_TRUE(comes_true([&] { return reports >= before_drive + 5; })) << "nobody waits";
  const EngineLock held(*engine);
  engine->ended();
}

TEST(LiveState, IsLeftOutWhereThereIsNoMemoryForIt) {
  auto world = transport::loopback::make_world({.ranks = 1}).or_throw();
  std::atomic<int> reports{0};
  const auto lacks_memory = [&](const LiveState&) {
    ++reports;
    throw std::bad_alloc();
  };
  const auto engine =
      Engine::create(std::move(world[0]), {.progress_thread = ProgressThread::always,
                                           .heartbeat = milliseconds(1),
                                           .report_live_state = lacks_memory})
          .or_throw();
  EXPECT_TRUE(comes_true([&] { return reports > 2; })) << "the thread that reports has ended";
}

// Rank 0 of two, for which rank 1 does nothing, and the text about what rank 0 is doing.
struct WatchedRank {
  ~WatchedRank() {
    const EngineLock held(*engine);
    groups.clear();
  }

  // Posts a receive that does not end, in a group called `name`.
  void receive_in(const std::string& name) {
    const EngineLock held(*engine);
    groups.push_back(std::make_unique<Group>(
        engine, execution::Membership{.group = 7 + groups.size(), .rank = 0, .members = {0, 1}},
        Group::Options{.name = name}));
    groups.back()->begin_numbering();
    const auto receive = groups.back()->submit(
        {.peer = kAnyRank,
         .operation = {.collective = Collective::point_to_point, .count = buffer.size()},
         .incoming = buffer,
         .deadline = Deadline::after(std::chrono::hours(1))});
    EXPECT_TRUE(receive.ok());
  }
  // Expects that rank 0 comes to report a text that ends with `end`.
  void expect_says(std::string_view end) {
    const bool said = comes_true([&] {
      const std::lock_guard guard(mutex);
      return doing.ends_with(end);
    });
    const std::lock_guard guard(mutex);
    EXPECT_TRUE(said) << doing << " does not end with" << end;
  }

  std::mutex mutex;
  std::string doing;
  std::array<std::byte, 10> buffer{};
  std::vector<std::unique_ptr<transport::Endpoint>> world =
      transport::loopback::make_world({.ranks = 2}).or_throw();
  std::shared_ptr<Engine> engine =
      Engine::create(std::move(world[0]), {.progress_thread = ProgressThread::never,
                                           .heartbeat = milliseconds(5),
                                           .report_live_state =
                                               [this](const LiveState& state) {
                                                 const std::lock_guard guard(mutex);
                                                 doing = state.doing;
                                               }})
          .or_throw();
  std::vector<std::unique_ptr<Group>> groups;
};

TEST(LiveState, SaysOfARankThatWaitsForNothingThatItIsInItsOwnCode) {
  WatchedRank rank;
  rank.engine->note("loading data");
  rank.receive_in("first");
  rank.expect_says(" of group \"first\", waiting for rank 1; in its own code: loading data");
  std::atomic<bool> is_over{false};
  std::thread waiter([&] { (void)rank.engine->drive([&] { return is_over.load(); }, soon()); });
  rank.expect_says(" of group \"first\", waiting for rank 1");
  is_over = true;
  waiter.join();
  rank.expect_says("; in its own code: loading data");
}

TEST(LiveState, IsThatOfTheGroupToWhichTheRankHasTurnedLast) {
  WatchedRank rank;
  rank.receive_in("first");
  rank.expect_says(" of group \"first\", waiting for rank 1; in its own code");
  rank.receive_in("second");
  rank.expect_says(" of group \"second\", waiting for rank 1; in its own code");
}

}  // namespace
}  // namespace stretto::group

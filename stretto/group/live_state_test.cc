// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/live_state.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "stretto/group/engine.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/held_plane.h"
#include "tests/support/soon.h"

namespace stretto::group {
namespace {

using std::chrono::milliseconds;

TEST(WaitTime, GrowsWhileAtLeastOneThreadWaits) {
  WaitTime waited;
  EXPECT_EQ(waited.total(), Duration::zero());
  waited.begin();
  waited.begin();
  waited.end();
  std::this_thread::sleep_for(milliseconds(1));
  const Duration amid = waited.total();
  EXPECT_GE(amid, milliseconds(1)) << "the other still waits";
  waited.end();
  const Duration total = waited.total();
  EXPECT_GE(total, amid) << "it has shrunk";
  std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(waited.total(), total);
}

// A thread that takes turns does not let go of the lock while each of them moves something.
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

}  // namespace
}  // namespace stretto::group

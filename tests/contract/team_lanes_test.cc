// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A turn names the same slots on all ranks of a team, and these slots are free, whatever number of
// lanes has been used before.

#include "stretto/execution/team_lanes.h"

#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "stretto/transport/loopback/world.h"

namespace stretto::execution {
namespace {

constexpr std::size_t kLane = Window::kLaneBytes;

struct Free {
  void operator()(Window* window) const { std::free(window); }
};

class TwoRanks : public ::testing::Test {
 protected:
  TwoRanks() {
    for (std::size_t r = 0; r < 2; ++r) {
      // Zeroed memory is a fresh window.
      const std::size_t bytes = (Window::bytes(true) + 127) / 128 * 128;
      memory_[r].reset(static_cast<Window*>(std::aligned_alloc(128, bytes)));
      std::fill_n(reinterpret_cast<std::byte*>(memory_[r].get()), sizeof(Window), std::byte{});
    }
    for (std::int32_t r = 0; r < 2; ++r) {
      windows_[static_cast<std::size_t>(r)].of = {memory_[0].get(), memory_[1].get()};
      windows_[static_cast<std::size_t>(r)].team = {0, 1};
      members_[static_cast<std::size_t>(r)] = {.rank = r, .members = {0, 1}};
    }
  }
  // Both ranks run an operation of `segments` segments; rank 0 goes as far ahead as it may.
  void run(std::uint64_t segments) {
    ++call_.sequence;
    const std::uint64_t first = lanes_[0].take_turns(segments);
    ASSERT_EQ(lanes_[1].take_turns(segments), first);
    for (std::uint64_t turn = first; turn < first + segments; ++turn) {
      for (TeamLanes& lanes : lanes_) {
        ASSERT_TRUE(lanes.may_begin(turn)) << turn;
        lanes.begin(turn, call_);
      }
      lanes_[0].reach_sync(turn);
      EXPECT_FALSE(lanes_[0].sync_is_complete(turn)) << turn;
      lanes_[1].reach_sync(turn);
      for (TeamLanes& lanes : lanes_) {
        EXPECT_TRUE(lanes.sync_is_complete(turn)) << turn;
        EXPECT_TRUE(lanes.agree(turn, call_).ok()) << turn;
        lanes.end(turn);
      }
      for (const Rank member : {Rank(0), Rank(1)}) {
        EXPECT_EQ(lanes_[0].slots(member, turn), lanes_[1].slots(member, turn)) << turn;
      }
    }
  }
  std::size_t place_of(std::uint64_t turn) const {
    return static_cast<std::size_t>(lanes_[0].slots(0, turn) - memory_[0]->staging) / kLane;
  }

  std::unique_ptr<Window, Free> memory_[2];
  Windows windows_[2];
  Membership members_[2];
  std::vector<std::unique_ptr<transport::Endpoint>> endpoints_ =
      transport::loopback::make_world({.ranks = 2}).or_throw();
  TeamLanes lanes_[2] = {{windows_[0], members_[0], *endpoints_[0]},
                         {windows_[1], members_[1], *endpoints_[1]}};
  Call call_;
};

TEST_F(TwoRanks, GoOnInOtherLanesWhenTheirNumberChanges) {
  std::uint64_t turn = 0;
  for (const std::size_t count : {16u, 4u, 16u, 1u, 3u, 4u}) {
    for (TeamLanes& lanes : lanes_) lanes.use_lanes(count);
    std::vector<std::size_t> places;
    for (std::uint64_t segments : {1, 5, 2 * static_cast<int>(count)}) {
      run(segments);
      for (std::uint64_t i = 0; i < segments; ++i) places.push_back(place_of(turn++));
    }
    // The turns take lane after lane, and in each lane its two sets of slots alternately.
    for (std::size_t i = count; i < places.size(); ++i) {
      EXPECT_EQ(places[i] / 2, places[i - count] / 2) << i << " of " << count;
      EXPECT_NE(places[i], places[i - count]) << i << " of " << count;
    }
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(places[i] / 2, i) << count;
  }
}

TEST_F(TwoRanks, AwaitTheirOwnEndOfALane) {
  for (TeamLanes& lanes : lanes_) lanes.use_lanes(2);
  const std::uint64_t first = lanes_[0].take_turns(4);
  EXPECT_TRUE(lanes_[0].may_begin(first));
  EXPECT_TRUE(lanes_[0].may_begin(first + 1));
  EXPECT_FALSE(lanes_[0].may_begin(first + 2));
  lanes_[0].begin(first, call_);
  EXPECT_FALSE(lanes_[0].may_begin(first + 2));
  lanes_[0].end(first);
  EXPECT_TRUE(lanes_[0].may_begin(first + 2));
  EXPECT_FALSE(lanes_[0].may_begin(first + 3));
}

}  // namespace
}  // namespace stretto::execution

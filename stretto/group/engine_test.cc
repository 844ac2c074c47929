// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/engine.h"

#include <gtest/gtest.h>

#include "stretto/group/group.h"
#include "stretto/transport/loopback/world.h"

namespace stretto::group {
namespace {

// Rank 0 of two, as it hears of a group that rank 1 has given up before rank 0 has made it.
Status failure_of(const std::shared_ptr<Engine>& engine, std::uint64_t group) {
  const EngineLock held(*engine);
  Group made(engine, {.group = group, .rank = 0, .members = {0, 1}}, {});
  return made.failure();
}

// Each is a number and a text that a peer chooses, for a group that may never come.
TEST(Engine, RemembersTheLastOfTheGroupsThatWereGivenUpEarly) {
  auto world = transport::loopback::make_world({.ranks = 2}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  constexpr std::uint64_t kFirst = 100, kLast = 5000;
  const std::vector<Rank> members = {0, 1};
  for (std::uint64_t group = kFirst; group <= kLast; ++group) {
    world[1]->announce_abort(group, members, {StatusCode::aborted, "no more of it", Rank(1)});
    world[1]->progress();
    engine->turn();
  }
  EXPECT_EQ(failure_of(engine, kLast).message(), "no more of it");
  EXPECT_EQ(failure_of(engine, kLast - 500).message(), "no more of it");
  EXPECT_TRUE(failure_of(engine, kFirst).ok()) << "it has not been forgotten";
}

}  // namespace
}  // namespace stretto::group

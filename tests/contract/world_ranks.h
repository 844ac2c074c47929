// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "stretto/communicator/scheduled_backend.h"
#include "stretto/group/engine.h"
#include "tests/contract/rank_communicators.h"
#include "tests/contract/transport_worlds.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {

// Ranks on the endpoints of a world, as if they were all on one host. `engines`, if given, gets
// theirs.
inline RankList make_ranks(transport::World& world, group::Engine::Options options,
                           Duration timeout,
                           std::vector<std::shared_ptr<group::Engine>>* engines = nullptr) {
  options.local_ranks = world.size();
  RankList ranks(world.endpoints.size());
  std::vector<std::shared_ptr<group::Engine>> made(ranks.size());
  on_threads(ranks.size(), [&](std::size_t r) {
    made[r] = group::Engine::create(std::move(world.endpoints[r]), options).or_throw();
    ranks[r] = communicator::ScheduledBackend::make_world(made[r], {.timeout = timeout}).or_throw();
  });
  if (engines != nullptr) *engines = std::move(made);
  return ranks;
}

inline RankList make_world_ranks(const transport::WorldKind& kind, int size, Duration heartbeat,
                                 Duration timeout = std::chrono::seconds(30),
                                 ProgressThread progress_thread = ProgressThread::automatic) {
  transport::World world = kind.make({.ranks = size});
  return make_ranks(world, {.progress_thread = progress_thread, .heartbeat = heartbeat}, timeout);
}

}  // namespace stretto::testing

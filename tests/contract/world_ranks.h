// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/communicator/engine.h"
#include "stretto/communicator/scheduled_communicator.h"
#include "tests/contract/rank_communicators.h"
#include "tests/contract/transport_worlds.h"

namespace stretto::testing {

// Ranks on the endpoints of a world of that kind, as if they were all on one host.
inline RankList make_world_ranks(const transport::WorldKind& kind, int size, Duration heartbeat,
                                 ProgressThread progress_thread = ProgressThread::automatic,
                                 Duration timeout = std::chrono::seconds(30)) {
  transport::World world = kind.make({.ranks = size});
  RankList ranks(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      auto engine =
          communicator::Engine::create(
              std::move(world.endpoints[r]),
              communicator::Engine::Options{
                  .progress_thread = progress_thread, .local_ranks = size, .heartbeat = heartbeat})
              .or_throw();
      ranks[r] =
          communicator::ScheduledCommunicator::make_world(std::move(engine), {.timeout = timeout})
              .or_throw();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

}  // namespace stretto::testing

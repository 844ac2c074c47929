// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>

#include "tests/contract/rank_communicators.h"
#include "tests/contract/transport_worlds.h"
#include "tests/support/rank_list.h"

namespace stretto::testing {

inline RankList make_world_ranks(const transport::WorldKind& kind, int size, Duration heartbeat,
                                 Duration timeout = std::chrono::seconds(30),
                                 ProgressThread progress_thread = ProgressThread::automatic) {
  transport::World world = kind.make({.ranks = size});
  return make_ranks(world.endpoints, {.progress_thread = progress_thread, .heartbeat = heartbeat},
                    {.timeout = timeout});
}

}  // namespace stretto::testing

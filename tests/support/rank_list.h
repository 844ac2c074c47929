// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/group/engine.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {

using RankList = std::vector<std::unique_ptr<Communicator>>;

// Makes ranks on these endpoints, as if they were all on one host. `engines`, if given, receives
// their engines.
inline RankList make_ranks(std::span<std::unique_ptr<transport::Endpoint>> endpoints,
                           group::Engine::Options of_engines,
                           const communicator::ScheduledBackend::Options& of_backends,
                           std::vector<std::shared_ptr<group::Engine>>* engines = nullptr) {
  of_engines.local_ranks = static_cast<int>(endpoints.size());
  RankList ranks(endpoints.size());
  std::vector<std::shared_ptr<group::Engine>> made(ranks.size());
  on_threads(ranks.size(), [&](std::size_t r) {
    made[r] = group::Engine::create(std::move(endpoints[r]), of_engines).or_throw();
    ranks[r] = communicator::ScheduledBackend::make_world(made[r], of_backends).or_throw();
  });
  if (engines != nullptr) *engines = std::move(made);
  return ranks;
}

// Runs `body` for every rank, each on a thread of its own, as the processes of a job would.
inline void on_each(RankList& ranks,
                    const std::function<void(std::unique_ptr<Communicator>&)>& body) {
  on_threads_of(ranks, [&](auto& rank) {
    try {
      body(rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      rank.reset();  // Then the others do not wait for it.
    }
  });
}

// `ranks` may be a temporary list, which then ends with the call.
inline void on_all(auto&& ranks, const std::function<void(Communicator&)>& body) {
  on_each(ranks, [&](std::unique_ptr<Communicator>& rank) { body(*rank); });
}

}  // namespace stretto::testing

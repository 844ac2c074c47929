// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/threads.h"

#include <unistd.h>

#include <thread>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/base/thread.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/transport/loopback/world.h"

namespace stretto {
namespace {

Result<std::unique_ptr<Communicator>> make_rank(std::unique_ptr<transport::Endpoint> endpoint,
                                                const ThreadRanksOptions& options) {
  STRETTO_ASSIGN_OR_RETURN(
      auto engine, group::Engine::create(
                       std::move(endpoint),
                       group::Engine::Options{
                           .progress_thread = options.progress_thread,
                           .local_ranks = options.size,
                           .names = std::vector(static_cast<std::size_t>(options.size),
                                                fmt::format("thread of pid {}", ::getpid()))}));
  return communicator::ScheduledBackend::make_world(
      std::move(engine),
      {.timeout = options.timeout,
       .algorithm = options.algorithm,
       .single_copy = options.single_copy,
       .group = {.segment_bytes = options.segment_bytes, .hosts = options.hosts}});
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const ThreadRanksOptions& options) {
  if (options.size < 1) refuse("make_thread_ranks: there are no {} ranks", options.size);
  const auto ranks = static_cast<std::size_t>(options.size);
  if (!options.hosts.empty() && options.hosts.size() != ranks) {
    refuse("make_thread_ranks: {} numbers of hosts for {} ranks", options.hosts.size(), ranks);
  }
  if (!options.algorithm.empty()) {
    schedule::check_algorithm("make_thread_ranks: ", options.algorithm).or_throw();
  }
  auto endpoints =
      transport::loopback::make_world(
          {.ranks = options.size, .shared_memory = options.shared_memory, .hosts = options.hosts})
          .or_throw();
  std::vector<std::unique_ptr<Communicator>> communicators(ranks);
  std::vector<Status> statuses(
      ranks, Status(StatusCode::internal, "the thread of a rank has ended early; see the log"));
  Status first_failure;
  // Making a communicator is collective, so every rank needs a thread for it.
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    Result<std::thread> thread = start_thread("stretto-rank", [&, r] {
      Result<std::unique_ptr<Communicator>> made = make_rank(std::move(endpoints[r]), options);
      statuses[r] = made.status();
      if (made.ok()) communicators[r] = std::move(*made);
    });
    first_failure = thread.status();
    if (!thread.ok()) {
      // The others wait for this rank and those after it, which will not come.
      for (std::size_t absent = r; absent < ranks; ++absent) endpoints[absent].reset();
      break;
    }
    threads.push_back(std::move(*thread));
  }
  for (std::thread& thread : threads) thread.join();
  first_failure.or_throw();
  for (const Status& status : statuses) status.or_throw();
  return communicators;
}

}  // namespace stretto

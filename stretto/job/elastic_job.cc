// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/elastic_job.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/log.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/job/job.h"
#include "stretto/job/join_job.h"
#include "stretto/job/membership.h"

namespace stretto {
namespace {

using job::ElasticPlace;
using job::Generation;
using job::Job;
using job::Membership;

Result<std::unique_ptr<Membership>> enter(const ElasticOptions& options,
                                          const Environment& environment) {
  if (options.min_size < 1) {
    return status_of(StatusCode::invalid_argument,
                     "min_size is {}: a generation has at least one process", options.min_size);
  }
  STRETTO_ASSIGN_OR_RETURN(const ElasticPlace place, job::elastic_place(options.join, environment));
  if (!place.store) return std::unique_ptr<Membership>();
  STRETTO_ASSIGN_OR_RETURN(
      std::shared_ptr<bootstrap::Store> store,
      bootstrap::connect_tcp_store({.host = place.store->host,
                                    .port = place.store->port,
                                    .key = place.key,
                                    .self = {.rank = std::max(0, place.launcher_rank)}},
                                   Deadline::after(options.join.join_timeout)));
  return Membership::enter(std::make_shared<bootstrap::PrefixStore>("elastic/", std::move(store)),
                           {.launcher_rank = place.launcher_rank,
                            .first_size = place.launched_size,
                            .min_size = options.min_size});
}

Result<Job> job_of(const Generation& generation, const JoinOptions& options,
                   const Environment& environment) {
  const auto size = static_cast<int>(generation.members.size());
  STRETTO_ASSIGN_OR_RETURN(
      Job job, job::given_job(generation.store, generation.rank, size, options, environment));
  job.store_prefix = "";  // A member that ends early is missed where the others look.
  for (const auto& member : generation.members) job.launcher_ranks.push_back(member.launcher_rank);
  return job;
}

// Who has been lost while a generation meets will not be in the next.
bool may_meet_again(const Status& failure) {
  return failure.code() == StatusCode::peer_lost || failure.code() == StatusCode::aborted;
}

}  // namespace

ElasticJob::ElasticJob(const ElasticOptions& options)
    : options_(options),
      membership_(enter(options, job::environment_of(options.join)).or_throw()) {}

ElasticJob::~ElasticJob() = default;

std::unique_ptr<Communicator> ElasticJob::join() {
  if (has_left_) {
    throw InvalidArgument({StatusCode::invalid_argument,
                           "this process has left the job when join() failed: a new ElasticJob "
                           "enters it again"});
  }
  Result<std::unique_ptr<Communicator>> joined = try_to_join();
  if (!joined.ok() && membership_ != nullptr) {
    has_left_ = true;
    membership_->leave();
  }
  return std::move(joined).or_throw();
}

Result<std::unique_ptr<Communicator>> ElasticJob::try_to_join() {
  const Environment& environment = job::environment_of(options_.join);
  if (membership_ == nullptr) {
    ++generation_;
    return job::join_job(job::resolve_job(options_.join, environment), options_.join, environment);
  }
  const Deadline deadline = Deadline::after(options_.join.join_timeout);
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const Generation generation, membership_->next(deadline));
    JoinOptions options = options_.join;
    options.rendezvous.clear();
    options.join_timeout = deadline.remaining();
    auto joined = job::join_job(job_of(generation, options, environment), options, environment);
    if (!joined.ok() && may_meet_again(joined.status()) && !deadline.passed()) {
      log(LogLevel::warning, "generation {} of the job did not come about: {}", generation.number,
          joined.status().message());
      continue;
    }
    STRETTO_RETURN_IF_ERROR(joined.status());
    generation_ = generation.number;
    log(LogLevel::info, "generation {} of the job: this is rank {} of {}", generation_,
        generation.rank, generation.members.size());
    return joined;
  }
}

bool ElasticJob::has_newcomers(Communicator& communicator) {
  std::vector<std::uint8_t> some = {0};
  if (membership_ == nullptr) return false;
  if (communicator.rank() == 0) some.front() = membership_->has_newcomers().or_throw() ? 1 : 0;
  communicator.broadcast(some).wait();
  return some.front() != 0;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/elastic_job.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/bootstrap/memory_store.h"
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

Result<std::unique_ptr<Membership>> enter(const ElasticOptions& options, const ElasticPlace& place,
                                          const WaitLimit& limit) {
  if (options.min_size < 1) {
    return status_of(StatusCode::invalid_argument,
                     "min_size is {}: a generation has at least one process", options.min_size);
  }
  if (!place.store && options.min_size > 1) {
    return status_of(StatusCode::invalid_argument,
                     "min_size is {}, but this process is alone: neither a launcher nor "
                     "STRETTO_RENDEZVOUS says where others could be met",
                     options.min_size);
  }
  if (!place.store) return std::unique_ptr<Membership>();
  STRETTO_ASSIGN_OR_RETURN(std::shared_ptr<bootstrap::Store> store,
                           bootstrap::connect_tcp_store({.host = place.store->host,
                                                         .port = place.store->port,
                                                         .key = place.key,
                                                         .self = {.rank = place.launcher_rank}},
                                                        limit));
  return Membership::enter(
      std::make_shared<bootstrap::PrefixStore>(std::string(Membership::kStorePrefix),
                                               std::move(store)),
      {.launcher_rank = place.launcher_rank,
       .first_size = place.launched_size,
       .min_size = options.min_size,
       .settings = fmt::format("{}, min_size {}", place.settings, options.min_size)},
      limit);
}

// Whether another process has died, or has reported a failure of its own.
bool is_of_others(const Status& failure) {
  return failure.code() == StatusCode::peer_lost || failure.code() == StatusCode::aborted;
}

// Whether the others can meet for the next generation after this failure: a lost process is no
// longer expected there, and a late one may still come.
bool may_meet_again(const Status& failure) {
  return is_of_others(failure) || failure.code() == StatusCode::timeout;
}

// Whether some of the members have met before, and others have not.
bool takes_in_newcomers(const Generation& generation) {
  return generation.members.front().since < generation.number &&
         generation.members.back().since == generation.number;
}

// Whether a newcomer may be the cause: it cannot be reached, or has reported a failure of its own.
bool may_be_of_newcomers(const Status& failure, const Generation& generation) {
  const std::optional<Rank> rank = failure.rank();
  if (rank && *rank >= 0 && *rank < static_cast<int>(generation.members.size()) &&
      generation.members[static_cast<std::size_t>(*rank)].since == generation.number) {
    return true;
  }
  return failure.code() == StatusCode::refused || failure.code() == StatusCode::mismatch;
}

}  // namespace

bool ElasticJob::is_loss(const Error& error) { return may_meet_again(error.status()); }

ElasticJob::ElasticJob(const ElasticOptions& options)
    : options_(options),
      place_(std::make_unique<ElasticPlace>(
          job::elastic_place(options.join, job::environment_of(options.join)).or_throw())),
      membership_(enter(options, *place_, limit()).or_throw()) {}

ElasticJob::~ElasticJob() = default;

Deadline ElasticJob::limit() const { return Deadline::after(options_.join.join_timeout); }

std::unique_ptr<Communicator> ElasticJob::join() {
  store_ = nullptr;
  auto world = (membership_ == nullptr ? join_alone() : join_others()).or_throw();
  if (world != nullptr) job::record_flight(*world, job::environment_of(options_.join), generation_);
  return world;
}

Result<std::unique_ptr<Communicator>> ElasticJob::join_alone() {
  if (finished_alone_) return std::unique_ptr<Communicator>();
  const Environment& environment = job::environment_of(options_.join);
  auto joined = job::join_job(job::resolve_job(options_.join, environment), options_.join);
  if (!joined.ok()) return joined;
  ++generation_;
  store_ = std::make_shared<bootstrap::MemoryStore>();
  return joined;
}

Result<std::unique_ptr<Communicator>> ElasticJob::join_others() {
  constexpr Duration kLongestPause = std::chrono::seconds(2);
  Deadline deadline = limit();
  Duration pause = std::chrono::milliseconds(10);
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const auto generation, membership_->next(deadline));
    if (!generation) return std::unique_ptr<Communicator>();
    auto joined = meet(*generation);
    if (joined.ok()) return joined;
    const bool with_newcomers = takes_in_newcomers(*generation);
    const bool meets_again = may_meet_again(joined.status()) ||
                             (with_newcomers && may_be_of_newcomers(joined.status(), *generation));
    const bool has_lost_one = meets_again && membership_->has_lost_one_of(*generation);
    const bool is_newcomer = with_newcomers && !membership_->has_met();
    const bool may_stay = is_of_others(joined.status()) && !deadline.passed();
    if (is_newcomer && !has_lost_one && !may_stay) {
      membership_->leave();  // The others shall not count on this process.
      return joined;
    }
    if (!meets_again) return joined;
    // The remaining members meet again, with a new time limit.
    if (has_lost_one || (with_newcomers && !is_newcomer)) deadline = limit();
    if (deadline.passed()) return joined;
    log(LogLevel::warning, "generation {} of the job did not come about: {}", generation->number,
        joined.status().message());
    // Living members that cannot reach each other must not retry as fast as they can.
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

// Connecting takes at most join_timeout, however long a member has waited for the others before:
// the limit has to be the same for all.
Result<std::unique_ptr<Communicator>> ElasticJob::meet(const Generation& generation) {
  const Environment& environment = job::environment_of(options_.join);
  JoinOptions options = options_.join;
  options.rendezvous.clear();
  if (device_) options.device = device_;
  const auto size = static_cast<int>(generation.members.size());
  STRETTO_ASSIGN_OR_RETURN(
      Job job, job::given_job(generation.store, generation.rank, size, options, environment));
  job.key = place_->key;
  job.local_rank = place_->local_rank;
  for (const auto& member : generation.members) job.launcher_ranks.push_back(member.launcher_rank);
  auto joined = job::join_job(job, options);
  if (!joined.ok()) return joined;
  membership_->note_meeting(generation);
  device_ = (*joined)->device();
  generation_ = generation.number;
  // Apart from the notes with which the members have connected.
  store_ = std::make_shared<bootstrap::PrefixStore>("members/", generation.store);
  log(LogLevel::info, "generation {} of the job: this is rank {} of {}", generation_,
      generation.rank, size);
  return joined;
}

bool ElasticJob::has_newcomers(Communicator& communicator) {
  if (membership_ == nullptr) return false;
  std::array<std::uint8_t, 1> are_there = {0};
  if (communicator.rank() == 0) {
    constexpr Duration kLongestAnswer = std::chrono::seconds(1);
    const Result<bool> found = membership_->has_newcomers(Deadline::after(kLongestAnswer));
    // Without an answer training goes on, and newcomers wait.
    if (!found.ok()) log(LogLevel::warning, "{}", found.status().message());
    are_there.front() = found.ok() && found.value() ? 1 : 0;
  }
  communicator.broadcast(are_there).wait();
  return are_there.front() != 0;
}

void ElasticJob::finish() {
  if (membership_ == nullptr) {
    finished_alone_ = true;
  } else {
    membership_->finish(limit()).or_throw();
  }
}

}  // namespace stretto

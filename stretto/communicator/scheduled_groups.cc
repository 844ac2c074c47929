// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How scheduled backends make groups of other groups, and which of their ranks share a host.

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_backend.h"

namespace stretto::communicator {

// Agrees on who is left, sets up a group of them, agrees on whether that has worked and who is left
// now, and repeats this until no rank was lost meanwhile. All ranks do the same after the same
// decisions, so no rank has a group that another lacks.
std::unique_ptr<ScheduledBackend> ScheduledBackend::shrink(const std::vector<Rank>& excluded) {
  const Deadline until = deadline(std::nullopt);
  // Not announced: the others hear of it by the agreement.
  {
    group::EngineLock held(*engine_);
    group_->fail(ended_because_it("has called shrink, which ends the communicator"), false);
    engine_->run_continuations(held);
  }
  while (true) {
    Result<group::Proposal> agreed = agree(excluded, candidate_ && candidate_->status.ok(), until);
    if (agreed.status().code() == StatusCode::timeout && candidate_) {
      candidate_->status.or_throw();  // The failed set-up took all the time.
    }
    agreed.status().or_throw();
    const std::vector<Rank> left = agreed->participants();
    std::optional<Candidate> candidate = std::exchange(candidate_, std::nullopt);
    if (candidate && candidate->ranks == left) {
      if (agreed->ready) return std::move(candidate->group);
      why_not_made(*candidate).or_throw();
    }
    // All members count agreements alike; they may not count other groups alike.
    const std::uint64_t number = group_number(~group_->id(), group_->agreement_number(), left);
    candidate_ =
        Candidate{.ranks = left, .group = enter_group(number, left, options_), .status = {}};
    if (!options_.library.for_devices) candidate_->group->options_.library = {};
    candidate_->status = candidate_->group->set_up(until).with_context(
        fmt::format("shrink on rank {}", job_rank(rank()).value()));
  }
}

Result<group::Proposal> ScheduledBackend::agree(const std::vector<Rank>& left_out, bool ready,
                                                const Deadline& until) {
  {
    group::EngineLock held(*engine_);
    group_->begin_agreement(left_out, ready);
    engine_->run_continuations(held);
  }
  const auto ended = [&]()
                         STRETTO_REQUIRES(group::engine_held) { return group_->agreement_ended(); };
  if (!engine_->drive(ended, Deadline(group::time_to_ask(until)))) {
    const group::EngineLock held(*engine_);
    group_->ask_late_in_agreement();
  }
  (void)engine_->drive(ended, until);
  const group::EngineLock held(*engine_);
  return group_->agreed(until);
}

// No rank was lost, but at least one could not set up the group.
Status ScheduledBackend::why_not_made(const Candidate& candidate) const {
  if (!candidate.status.ok()) return candidate.status;
  const group::EngineLock held(*engine_);
  const Status& failure = candidate.group->group_->failure();
  return !failure.ok() ? failure
                       : Status(StatusCode::aborted, "another rank could not make the new group");
}

// All `ranks` call this with the same arguments.
std::unique_ptr<ScheduledBackend> ScheduledBackend::make_group(std::uint64_t number,
                                                               const std::vector<Rank>& ranks,
                                                               const GroupOptions& given) {
  Options options = options_;
  options.timeout = given.timeout.value_or(options_.timeout);
  options.group.ancestors.push_back(group_->id());
  options.group.name = given.name;
  if (given.is_for_host_memory) {
    if (options.library.for_devices) options.library = {};
    options.open_device = {};
    options.device = nullptr;
  }
  std::unique_ptr<ScheduledBackend> group = enter_group(number, ranks, options);
  if (group == nullptr) return nullptr;
  {
    const group::EngineLock held(*engine_);
    group->group_->fail_with_until_set_up(*group_);
  }
  group->set_up(deadline(std::nullopt)).or_throw();
  return group;
}

// Makes the backend without communication with the other ranks; null if this rank is not in
// `ranks`.
std::unique_ptr<ScheduledBackend> ScheduledBackend::enter_group(std::uint64_t number,
                                                                const std::vector<Rank>& ranks,
                                                                const Options& options) {
  execution::Membership membership{.group = number, .rank = -1, .members = {}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    membership.members.push_back(group_->membership().job_rank(ranks[i]));
    if (ranks[i] == rank()) membership.rank = static_cast<std::int32_t>(i);
  }
  if (membership.rank < 0) return nullptr;
  return std::unique_ptr<ScheduledBackend>(
      new ScheduledBackend(engine_, std::move(membership), options));
}

// Sets up the group together with the other ranks, which are told if it fails.
Status ScheduledBackend::set_up(Deadline until, Communicator* world) {
  const auto use_all = [&]() -> Status {
    STRETTO_RETURN_IF_ERROR(use_device(until));
    STRETTO_RETURN_IF_ERROR(share_windows(until));
    if (world != nullptr) {
      // The operations that measure must all end by `until` together.
      set_up_until_ = until;
      STRETTO_RETURN_IF_ERROR(measure_links(*world));
      set_up_until_.reset();
    }
    return use_library(until);
  };
  Status status;
  try {
    status = use_all();
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::out_of_memory, "there is no memory left");
  }
  if (!status.ok()) return fail_set_up(status);
  group::EngineLock held(*engine_);
  reaches_devices_ = !options_.open_device || group_->planner()->maps_all_devices();
  group_->begin_numbering();
  engine_->run_continuations(held);
  return {};
}

int ScheduledBackend::local_rank() const {
  const group::HostList& hosts = options_.group.hosts;
  const int self = engine_->transport().rank().value();
  const auto at = hosts.begin() + self;
  return hosts.empty() ? self : static_cast<int>(std::count(hosts.begin(), at, *at));
}

std::vector<std::int32_t> ScheduledBackend::hosts() const {
  const group::HostList hosts = group::hosts_of(options_.group.hosts, group_->membership().members);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(size()), 0);
  std::ranges::copy(hosts, numbers.begin());  // An empty list means one host.
  return numbers;
}

std::vector<Rank> ScheduledBackend::ranks_of_host() const {
  const group::HostList host_of = hosts();
  std::vector<Rank> ranks;
  for (std::int32_t r = 0; r < size(); ++r) {
    if (host_of[r] == host_of[rank()]) ranks.push_back(r);
  }
  return ranks;
}

bool ScheduledBackend::some_share_a_host() const { return std::ranges::max(hosts()) + 1 < size(); }

}  // namespace stretto::communicator

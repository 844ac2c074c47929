// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Groups made of other groups.

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/random.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_communicator.h"

namespace stretto::communicator {
namespace {

// Ranks that make the same groups in the same order give them the same numbers, without asking.
std::uint64_t group_number(std::uint64_t parent, std::uint64_t made,
                           const std::vector<Rank>& ranks) {
  std::uint64_t number = Random(parent).next() ^ Random(made).next();
  for (const Rank rank : ranks) {
    number = Random(number ^ static_cast<std::uint64_t>(rank.value())).next();
  }
  return number;
}

void check_list(const Caller& caller, const std::vector<Rank>& ranks, int size) {
  check(caller, !ranks.empty(), "the list of ranks is empty");
  std::vector<bool> listed(static_cast<std::size_t>(size));
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= size) {
      refuse(caller, fmt::format("rank {} is not one of {} ranks", rank.value(), size));
    }
    if (listed[static_cast<std::size_t>(rank)]) {
      refuse(caller, fmt::format("rank {} is listed twice", rank.value()));
    }
    listed[static_cast<std::size_t>(rank)] = true;
  }
}

// What a rank says when a group is split.
struct Side {
  std::int64_t key = 0;
  std::int32_t color = 0;
  std::int32_t takes_part = 0;
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::unique_ptr<Communicator> ScheduledCommunicator::new_group(std::vector<Rank> ranks) {
  check_list({.rank = rank(), .operation = "new_group"}, ranks, size());
  const std::uint64_t number = group_number(group_->id(), ++groups_made_, ranks);
  // Equal numbers mean equal lists.
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(size()));
  set_up_all_gather(bytes_of(number), std::as_writable_bytes(std::span(numbers)),
                    deadline(std::nullopt))
      .or_throw();
  const bool all_agree = std::ranges::all_of(numbers, [&](auto other) { return other == number; });
  if (!all_agree) refuse_lists(ranks);
  return make_group(number, ranks);
}

// All ranks have seen that their lists differ, and show them to each other.
void ScheduledCommunicator::refuse_lists(const std::vector<Rank>& own) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int32_t> padded(ranks, -1);
  std::ranges::transform(own, padded.begin(), [](Rank rank) { return rank.value(); });
  std::vector<std::int32_t> lists(ranks * ranks);
  set_up_all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(lists)),
                    deadline(std::nullopt))
      .or_throw();
  const auto list_of = [&](std::size_t rank) {
    const auto list = std::span<const std::int32_t>(lists).subspan(rank * ranks, ranks);
    return list.first(static_cast<std::size_t>(std::ranges::find(list, -1) - list.begin()));
  };
  const auto self = static_cast<std::size_t>(rank());
  for (std::size_t other = 0; other < ranks; ++other) {
    if (std::ranges::equal(list_of(other), list_of(self))) continue;
    throw Mismatch(
        status_of(StatusCode::mismatch, "new_group: rank {} listed the ranks {}, rank {} listed {}",
                  other, fmt::join(list_of(other), ", "), self, fmt::join(list_of(self), ", ")));
  }
  throw Mismatch(Status(StatusCode::mismatch,
                        "new_group: ranks have made different numbers of groups of this one"));
}

std::unique_ptr<Communicator> ScheduledCommunicator::split(const SplitOptions& options) {
  const Side own{
      .key = options.key, .color = options.color.value_or(0), .takes_part = options.color ? 1 : 0};
  std::vector<Side> sides(static_cast<std::size_t>(size()));
  ++groups_made_;
  set_up_all_gather(bytes_of(own), std::as_writable_bytes(std::span(sides)), deadline(std::nullopt))
      .or_throw();
  std::vector<Rank> ranks;
  for (std::int32_t r = 0; r < size(); ++r) {
    const Side& side = sides[static_cast<std::size_t>(r)];
    if (side.takes_part != 0 && side.color == own.color) ranks.push_back(r);
  }
  if (!options.color) return nullptr;
  std::ranges::stable_sort(
      ranks, {}, [&](Rank r) { return std::pair(sides[static_cast<std::size_t>(r)].key, r); });
  return make_group(group_number(group_->id(), groups_made_, ranks), ranks);
}

// Agrees on who is left, sets up a group of them, agrees on whether that has worked and who is left
// now, and so on until nobody has been lost meanwhile. All do the same after the same decisions, so
// none can have the group that another has not.
std::unique_ptr<Communicator> ScheduledCommunicator::shrink(std::vector<Rank> excluded) {
  const Caller caller{.rank = rank(), .operation = "shrink"};
  for (Rank& out : excluded) {
    const std::optional<Rank> member = group_->rank_in_group(out);
    if (!member)
      refuse(caller, fmt::format("rank {} of the job is no rank of this group", out.value()));
    out = *member;
  }
  if (!excluded.empty()) check_list(caller, excluded, size());
  check(caller, std::ranges::find(excluded, rank()) == excluded.end(),
        "the list has this rank in it");
  const Deadline until = deadline(std::nullopt);
  // The others hear of it by the agreement.
  end("has called shrink, which ends the communicator", false);
  while (true) {
    Result<group::Proposal> agreed = agree(excluded, candidate_ && candidate_->status.ok(), until);
    if (agreed.status().code() == StatusCode::timeout && candidate_) {
      candidate_->status.or_throw();  // It took all the time.
    }
    agreed.status().or_throw();
    const std::vector<Rank> left = agreed->participants();
    std::optional<Candidate> candidate = std::exchange(candidate_, std::nullopt);
    if (candidate && candidate->ranks == left) {
      if (agreed->ready) return std::move(candidate->group);
      why_not_made(*candidate).or_throw();
    }
    // Agreements are counted alike by all that take part in them; other groups may not be.
    const std::uint64_t number = group_number(~group_->id(), group_->agreement_number(), left);
    candidate_ = Candidate{.ranks = left, .group = enter_group(number, left), .status = {}};
    candidate_->status = candidate_->group->set_up(until).with_context(
        fmt::format("shrink on rank {}", job_rank().value()));
  }
}

Result<group::Proposal> ScheduledCommunicator::agree(const std::vector<Rank>& left_out, bool ready,
                                                     const Deadline& until) {
  {
    auto held = engine_->lock();
    group_->begin_agreement(left_out, ready);
    engine_->run_continuations(held);
  }
  const auto ended = [&] { return group_->agreement_ended(); };
  if (!engine_->drive(ended, Deadline(group::time_to_ask(until)))) {
    const auto held = engine_->lock();
    group_->ask_late_in_agreement();
  }
  (void)engine_->drive(ended, until);
  const auto held = engine_->lock();
  return group_->agreed(until);
}

// Nobody has been lost, but somebody could not set up the group.
Status ScheduledCommunicator::why_not_made(const Candidate& candidate) const {
  if (!candidate.status.ok()) return candidate.status;
  const auto held = engine_->lock();
  const Status& failure = candidate.group->group_->failure();
  return !failure.ok() ? failure
                       : Status(StatusCode::aborted, "another rank could not make the new group");
}

// Of ranks that all know that they are meant.
std::unique_ptr<Communicator> ScheduledCommunicator::make_group(std::uint64_t number,
                                                                const std::vector<Rank>& ranks) {
  std::unique_ptr<ScheduledCommunicator> group = enter_group(number, ranks);
  if (group != nullptr) group->set_up(deadline(std::nullopt)).or_throw();
  return group;
}

// The same, before anything has been exchanged with the others; null if this rank is not meant.
std::unique_ptr<ScheduledCommunicator> ScheduledCommunicator::enter_group(
    std::uint64_t number, const std::vector<Rank>& ranks) {
  execution::Membership membership{.group = number, .rank = -1, .members = {}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    membership.members.push_back(group_->membership().job_rank(ranks[i]));
    if (ranks[i] == rank()) membership.rank = static_cast<std::int32_t>(i);
  }
  if (membership.rank < 0) return nullptr;
  return std::unique_ptr<ScheduledCommunicator>(
      new ScheduledCommunicator(engine_, std::move(membership), options_));
}

// With the others, who are told if it fails.
Status ScheduledCommunicator::set_up(Deadline until) {
  const Status status = share_windows(until);
  auto held = engine_->lock();
  if (status.ok()) {
    group_->begin_numbering();
  } else {
    group_->fail(status, true);
  }
  engine_->run_continuations(held);
  return status;
}

}  // namespace stretto::communicator

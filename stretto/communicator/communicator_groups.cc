// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Groups made of other groups.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/observation.h"

namespace stretto {

using namespace communicator;

namespace {

void check_list(const Caller& caller, const std::vector<Rank>& ranks, int size) {
  check(caller, !ranks.empty(), "the list of ranks is empty");
  RankVector<bool> listed(size);
  for (const Rank rank : ranks) {
    check_rank(caller, rank, size);
    if (listed[rank]) refuse(caller, fmt::format("rank {} is listed twice", rank.value()));
    listed[rank] = true;
  }
}

// A rank's choice when a group is split.
struct Side {
  std::int64_t key = 0;
  std::int32_t color = 0;
  std::int32_t takes_part = 0;
};

// `observation`: of the communicator of which it was made, or null.
std::unique_ptr<Communicator> of(std::unique_ptr<ScheduledBackend> backend,
                                 const Observation* observation) {
  if (backend == nullptr) return nullptr;
  auto group = std::make_unique<Communicator>(std::move(backend));
  if (observation != nullptr) observation->extend_to(*group);
  return group;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

// Exchanges data to make a group; collective. Never matches a collective of the caller.
void Communicator::set_up_all_gather(std::span<const std::byte> own, std::span<std::byte> all) {
  submit(CollectiveCall(
             {.collective = Collective::all_gather, .count = all.size(), .layout = kSetUpLayout},
             own, all),
         {}, std::nullopt)
      .wait();
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as declared.
std::unique_ptr<Communicator> Communicator::new_group(std::vector<Rank> ranks,
                                                      const GroupOptions& options) {
  check_timeout(options.timeout);
  check_list({.rank = rank(), .operation = "new_group"}, ranks, size());
  const std::uint64_t number = group_number(backend_->group_id(), ++groups_made_, ranks);
  // Equal numbers mean equal lists of ranks.
  RankVector<std::uint64_t> numbers(size());
  set_up_all_gather(bytes_of(number), std::as_writable_bytes(std::span(numbers)));
  const bool all_agree = std::ranges::all_of(numbers, [&](auto other) { return other == number; });
  if (!all_agree) refuse_lists(ranks);
  return of(backend_->make_group(number, ranks, options), observation_.get());
}

// All ranks have seen that their lists differ. They exchange them to say how.
void Communicator::refuse_lists(const std::vector<Rank>& own) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int32_t> padded(ranks, -1);
  std::ranges::transform(own, padded.begin(), [](Rank rank) { return rank.value(); });
  std::vector<std::int32_t> lists(ranks * ranks);
  set_up_all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(lists)));
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

std::unique_ptr<Communicator> Communicator::split(const SplitOptions& options) {
  check_timeout(options.timeout);
  const Side own{
      .key = options.key, .color = options.color.value_or(0), .takes_part = options.color ? 1 : 0};
  RankVector<Side> sides(size());
  ++groups_made_;
  set_up_all_gather(bytes_of(own), std::as_writable_bytes(std::span(sides)));
  std::vector<Rank> ranks;
  for (std::int32_t r = 0; r < size(); ++r) {
    if (sides[r].takes_part != 0 && sides[r].color == own.color) ranks.push_back(r);
  }
  if (!options.color) return nullptr;
  std::ranges::stable_sort(ranks, {}, [&](Rank r) { return std::pair(sides[r].key, r); });
  return of(backend_->make_group(group_number(backend_->group_id(), groups_made_, ranks), ranks,
                                 {.timeout = options.timeout,
                                  .name = options.name,
                                  .is_for_host_memory = options.is_for_host_memory}),
            observation_.get());
}

std::unique_ptr<Communicator> Communicator::shrink(std::vector<Rank> excluded) {
  const Caller caller{.rank = rank(), .operation = "shrink"};
  RankVector<bool> listed(size());
  for (Rank& out : excluded) {
    Rank member = 0;
    while (member < size() && backend_->job_rank(member) != out) member = member.value() + 1;
    check(caller, member < size(),
          fmt::format("rank {} of the job is no rank of this group", out.value()));
    check(caller, !listed[member], fmt::format("rank {} is listed twice", out.value()));
    listed[member] = true;
    out = member;
  }
  check(caller, !listed[rank()], "the list has this rank in it");
  return of(backend_->shrink(excluded), observation_.get());
}

}  // namespace stretto

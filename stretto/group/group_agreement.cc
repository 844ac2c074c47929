// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How the members of a group agree on who is left: sends and receives the agreement's messages, and
// explains when some do not come.

#include <cstring>

#include <fmt/format.h>

#include "stretto/group/group.h"

namespace stretto::group {

// A member has died or has destroyed its communicator. It never comes back.
void Group::note_departed(Rank member, const Status& status) {
  Status& departed = departed_[member];
  if (departed.ok()) departed = status;
  agreement_.lose(member);
  send_agreement();
}

void Group::begin_agreement(const std::vector<Rank>& left_out, bool ready) {
  if (!agreement_.decided()) agreement_.begin(left_out, ready);
  send_agreement();
}

bool Group::agreement_ended() const {
  return agreement_.decided() || agreement_.left_out_by().has_value();
}

// Sends the agreement's messages to all members that can be reached, including those that are left
// out, so that they know.
void Group::send_agreement() {
  for (const Agreement::Message& message : agreement_.take_messages()) {
    const transport::MessageKey key{.group = membership_.group,
                                    .sequence = message.number,
                                    .segment = message.round,
                                    .message = message.proposal.ready ? 1u : 0u};
    const auto payload = std::as_bytes(std::span(message.proposal.lost_by));
    for (std::int32_t member = 0; member < size(); ++member) {
      if (member == membership_.rank.value()) continue;
      engine_->transport().send_agreement(membership_.job_rank(member), key, payload);
    }
  }
}

Status Group::agreement_arrived(Rank from, const transport::MessageKey& key,
                                ConstByteSpan payload) {
  const std::optional<Rank> member = rank_in_group(membership_, from);
  Agreement::Message message{.number = key.sequence,
                             .round = key.segment,
                             .proposal = {.lost_by = {}, .ready = key.message == 1}};
  auto& lost_by = message.proposal.lost_by;
  lost_by.resize(static_cast<std::size_t>(size()));
  const bool fits = member && payload.size() == lost_by.size() * sizeof(std::int32_t);
  if (fits) std::memcpy(lost_by.data(), payload.data(), payload.size());
  const auto is_member = [&](std::int32_t rank) {
    return rank >= Proposal::kTakesPart && rank < size();
  };
  if (!fits || key.message > 1 || !std::ranges::all_of(lost_by, is_member)) {
    return status_of(StatusCode::protocol,
                     "what it says in shrink about who is lost does not fit the group of {}",
                     list_ranks(membership_.members));
  }
  // It has ended its part of all operations, so those in flight may still end well.
  Status& departed = departed_[*member];
  if (departed.ok()) {
    departed = Status(
        StatusCode::aborted,
        fmt::format("rank {} has called shrink, which ends the communicator", from.value()), from);
    any_departed_ = true;
  }
  agreement_.receive(*member, message);
  send_agreement();
  return {};
}

void Group::ask_late_in_agreement() {
  inquiry_.begin(kAgreementSequence, {}, Clock::now());
  for (const Rank member : agreement_.waiting_for()) inquiry_.ask(member, kAgreementSequence, {});
}

Result<Proposal> Group::agreed(const Deadline& deadline) {
  if (const std::optional<Proposal> decision = agreement_.take_decision()) return *decision;
  const std::string self =
      fmt::format("shrink on rank {}", membership_.job_rank(membership_.rank).value());
  if (const std::optional<Rank> by = agreement_.left_out_by()) {
    const Rank job_rank = membership_.job_rank(*by);
    return Status(StatusCode::aborted,
                  fmt::format("{}: this rank is not in the new communicator, for rank {} has named "
                              "it or cannot reach it",
                              self, job_rank.value()),
                  job_rank);
  }
  const std::vector<Rank> late = agreement_.waiting_for();
  const bool answered = inquiry_.is_about(kAgreementSequence);
  const std::vector<Rank> roots = answered ? inquiry_.roots_of(late) : late;
  return Status(
      StatusCode::timeout,
      fmt::format("{}: timed out waiting for {}; waited {:.1f} s", self,
                  inquiry_.describe_late(kAgreementSequence, late),
                  seconds(Clock::now() - deadline.set_at())),
      roots.size() == 1 ? std::optional(membership_.job_rank(roots.front())) : std::nullopt);
}

}  // namespace stretto::group

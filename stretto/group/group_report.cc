// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a group reports about slow operations: which ranks it waits for, and their own answers.

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// Identifies a group without a name, in a job of `ranks` ranks.
std::string of_members(const execution::Membership& membership, int ranks,
                       std::string_view of_all) {
  if (std::ssize(membership.members) == ranks) return std::string(of_all);
  return " of the group of " + list_ranks(membership.members);
}

}  // namespace

// The operation that has been in flight longest.
const PendingOperation* Group::oldest() const {
  if (const PendingCollective* collective = operations_.oldest()) return collective;
  for (const auto& message : mailbox_.in_flight()) {
    if (!message->done()) return message.get();
  }
  return nullptr;
}

// Adds the group's name to the failure, unless its text has the name already.
Status Group::named(const Status& failure) const {
  const bool says_so = name_.empty() || failure.message().find(name_) != std::string_view::npos;
  return says_so ? failure : failure.with_context(name_);
}

std::string Group::of_group() const { return name_.empty() ? name_ : " of " + name_; }

std::string Group::name_of(const PendingOperation& operation) const {
  return operations_.name_of(operation) + of_group();
}

Status Group::in_context(const PendingOperation* operation, const Status& cause) const {
  // What a rank said when it left the group explains more than the later end of its link.
  const std::optional<Rank> gone =
      cause.rank() ? rank_in_group(membership_, *cause.rank()) : std::nullopt;
  const bool has_said = gone && cause.code() == StatusCode::peer_lost && !departed_[*gone].ok();
  const Status& said = has_said ? departed_[*gone] : cause;
  const int self = membership_.job_rank(membership_.rank).value();
  if (operation == nullptr) return said.with_context(fmt::format("rank {}", self));
  return said.with_context(fmt::format("{} on rank {}", name_of(*operation), self));
}

std::vector<Rank> Group::waiting_for(const PendingOperation& operation) const {
  for (const auto& message : mailbox_.in_flight()) {
    if (message.get() == &operation && message->peer) return {*message->peer};
  }
  return operations_.waiting_for(operation);
}

void Group::ask_others(const PendingOperation& operation, TimePoint now) {
  inquiry_.begin(operation.sequence(), operation.operation(), now, &operation != oldest());
  inquiry_.ask_about(operation.sequence(), operation.operation(), waiting_for(operation));
}

void Group::state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text) {
  const std::optional<Rank> member = rank_in_group(membership_, job_rank);
  if (member) inquiry_.take(*member, sequence, text);
}

// Says, before others are blamed, that this rank has stood still. Empty if it has been running all
// the time.
std::string Group::describe_standstill(TimePoint since) const {
  const Duration still = engine_->stood_still(since);
  if (still == Duration::zero()) return {};
  return fmt::format(
      "; but this rank itself has stood still for {} (it was stopped, or had no "
      "core), and others may have waited for it, or given it up",
      in_seconds(still));
}

Status Group::timed_out(const PendingOperation& operation) const {
  const std::uint32_t sequence = operation.sequence();
  const Late late = inquiry_.find_late(sequence, waiting_for(operation));
  const TimePoint since = operation.deadline().set_at();
  const std::string standstill = describe_standstill(since);
  const std::optional<Rank> culprit =
      standstill.empty() ? late.culprit : membership_.job_rank(membership_.rank);
  std::string text = fmt::format(
      "timed out waiting for {}; waited {}{}{}", inquiry_.describe_late(sequence, late.ranks),
      waited(Clock::now() - since), inquiry_.describe_arrived(sequence), standstill);
  return in_context(&operation, {StatusCode::timeout, std::move(text), culprit});
}

// Logs a warning long before the deadline, while somebody who reads the log can still do something.
void Group::warn(const PendingOperation& operation, TimePoint now) const {
  const std::uint32_t sequence = operation.sequence();
  const Late late = inquiry_.find_late(sequence, waiting_for(operation));
  const TimePoint ends = operation.deadline().time();
  log(LogLevel::warning, "{} on rank {} has waited {} for {}{}{}. It goes on waiting{}",
      name_of(operation), membership_.job_rank(membership_.rank).value(),
      waited(now - operation.running_since()), inquiry_.describe_late(sequence, late.ranks),
      inquiry_.describe_arrived(sequence), describe_standstill(operation.running_since()),
      ends == TimePoint::max() ? std::string()
                               : fmt::format(", {:.0f} s more at most", seconds(ends - now)));
}

std::vector<Rank> Group::in_job(std::vector<Rank> members) const {
  for (Rank& member : members) member = membership_.job_rank(member);
  return members;
}

// `group` names this group, " of the group of ranks 0, 2"; empty if it is the one that was asked
// about.
StateReport Group::state_in(std::string_view group, std::string_view activity) const {
  const PendingOperation* operation = oldest();
  if (operation == nullptr && operations_.last_ended() == 0) {
    return {.text = "has called no collective of the group; " + in_own_code(activity)};
  }
  if (operation == nullptr) {
    return {.text = fmt::format("ended {} {} ago; {}", operations_.name_of_ended(),
                                in_seconds(Clock::now() - operations_.ended_at()),
                                in_own_code(activity))};
  }
  StateReport report{.waits_for = in_job(waiting_for(*operation))};
  report.text = fmt::format("is in {}{}", operations_.name_of(*operation), group);
  if (!report.waits_for.empty()) report.text += ", waiting for " + list_ranks(report.waits_for);
  for (const Rank awaited : report.waits_for) {
    const std::string traffic = inquiry_.describe_traffic(awaited);
    if (traffic.empty()) continue;
    report.text += traffic;
    break;
  }
  return report;
}

std::optional<StateReport> Group::blocked_state() const {
  if (oldest() == nullptr) return std::nullopt;
  const int ranks = engine_->transport().size();
  const std::string unnamed = of_members(membership_, ranks, " of another group of all ranks");
  return state_in(name_.empty() ? unnamed : of_group(), {});
}

GroupLiveState Group::live_state(std::string_view activity) const {
  const PendingOperation* operation = oldest();
  GroupLiveState state{
      .collectives = operations_.begun_count(),
      .is_busy = operation != nullptr,
      .since = operation != nullptr ? operation->deadline().set_at() : operations_.ended_at()};
  if (!failure_.ok()) {
    state.doing = fmt::format("has failed: {}", failure_.message());
  } else if (!operations_.is_set_up()) {
    state.doing = "is setting up the communicator";
  } else {
    const std::string unnamed = of_members(membership_, engine_->transport().size(), "");
    state.doing = state_in(name_.empty() ? unnamed : of_group(), activity).text;
  }
  return state;
}

std::string Group::describe_state(std::uint32_t sequence, std::string_view activity) const {
  if (sequence == kAgreementSequence && !agreement_.begun()) {
    return encode({.text = "has not called shrink; " + in_own_code(activity)});
  }
  if (sequence == kAgreementSequence) {
    return encode({true, in_job(agreement_.waiting_for()), "is in shrink, too"});
  }
  if (!failure_.ok()) return encode({true, {}, fmt::format("has failed: {}", failure_.message())});
  const bool entered =
      sequence != transport::kPointToPoint && operations_.has_been_submitted(sequence);
  if (entered && operations_.has_ended(sequence)) return encode({true, {}, "has ended it"});
  StateReport report = state_in({}, activity);
  report.has_entered = entered;
  // Perhaps this rank waits in another group.
  for (const Group* other : engine_->groups()) {
    if (entered || oldest() != nullptr) break;
    if (const auto elsewhere = other->blocked_state()) return encode(*elsewhere);
  }
  return encode(report);
}

std::string describe_absence(std::span<Group* const> groups, std::string_view activity) {
  StateReport report{.text = "does not have this group; " + in_own_code(activity)};
  for (const Group* group : groups) {
    const auto elsewhere = group->blocked_state();
    if (!elsewhere) continue;
    report = *elsewhere;
    report.text.insert(0, "does not have this group and ");
    break;
  }
  return encode(report);
}

}  // namespace stretto::group

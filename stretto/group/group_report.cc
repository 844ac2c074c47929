// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a group says about slow operations: who is waited for, and what those ranks say themselves.

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// In larger groups only those are asked for whom this rank itself waits.
constexpr std::size_t kAskEverybodyMax = 64;
// An older operation that has asked within this keeps the answers: it is what the younger ones wait
// for.
constexpr std::chrono::seconds kAnswersAreNew(2);

std::string in_seconds(Duration duration) { return fmt::format("{:.1f} s", seconds(duration)); }

// In milliseconds where seconds would say nothing.
std::string waited(Duration duration) {
  const double milliseconds = 1e3 * seconds(duration);
  return milliseconds < 1e3 ? fmt::format("{:.0f} ms", milliseconds) : in_seconds(duration);
}

// Where nothing has been heard of a rank that has been asked. Progress threads look about once a
// second at the latest, so a shorter silence means nothing.
std::string silence(Duration asked) {
  if (asked < std::chrono::seconds(1)) {
    return fmt::format(
        "has not answered within {}: its program may be busy or asleep, or it is stopped",
        waited(asked));
  }
  return "does not answer: it is stopped, or so busy that no thread of it makes progress";
}

std::string doing(std::string_view activity) {
  return activity.empty() ? "in its own code" : fmt::format("in its own code: {}", activity);
}

}  // namespace

// For the launcher: "all_reduce(sum f32 [1024]) #7" is the last thing it knows of a rank that is
// killed.
void Group::report(const PendingCollective& collective) {
  const auto& report_activity = engine_->options().report_activity;
  if (!report_activity) return;
  reported_ = collective.sequence();
  report_activity(name_of(collective));
}

// What takes the fast path is reported now and then only.
void Group::report_ended(std::uint32_t ended) {
  const auto& report_activity = engine_->options().report_activity;
  if (!report_activity || ended <= reported_ || !is_set_up_) return;
  reported_ = ended;
  report_activity(fmt::format("#{} or one soon after it", ended));
}

// The members for which an operation waits.
std::vector<Rank> Group::waiting_for(const PendingOperation& operation) const {
  for (const auto& message : mailbox_.in_flight()) {
    if (message.get() == &operation && message->peer) return {*message->peer};
  }
  for (const Running& running : running_) {
    if (running.collective.get() == &operation) return running.execution->waiting_for();
  }
  const bool queued = operation.sequence() != transport::kPointToPoint;
  if (queued && !running_.empty()) return running_.front().execution->waiting_for();
  std::vector<Rank> others;
  for (std::int32_t rank = 0; rank < size(); ++rank) {
    if (rank != membership_.rank.value()) others.push_back(rank);
  }
  return others;
}

// Tells the others what this rank waits in, which may be news to them, and asks where they are.
void Group::ask_others(const PendingOperation& operation, TimePoint now) {
  const std::uint32_t sequence = operation.sequence();
  if (&operation == oldest() || inquiry_.at + kAnswersAreNew < now) {
    begin_inquiry(sequence, operation.operation(), now);
  }
  const bool everybody =
      sequence != transport::kPointToPoint && membership_.members.size() <= kAskEverybodyMax;
  if (!everybody) {
    for (const Rank member : waiting_for(operation)) ask(member, sequence, operation.operation());
    return;
  }
  for (std::int32_t member = 0; member < size(); ++member) {
    ask(member, sequence, operation.operation());
  }
}

void Group::begin_inquiry(std::uint32_t sequence, const OperationDescriptor& operation,
                          TimePoint now) {
  inquiry_ = {.sequence = sequence, .operation = operation, .at = now, .answers = {}};
  inquiry_.answers.resize(membership_.members.size());
}

void Group::ask(Rank member, std::uint32_t sequence, const OperationDescriptor& operation) {
  if (member == membership_.rank) return;
  engine_->transport().inquire(membership_.job_rank(member), membership_.group, sequence,
                               operation);
}

// Who waits for others leads to those at the root of it, who may not have been asked.
void Group::state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member || sequence != inquiry_.sequence || inquiry_.answers.empty()) return;
  std::optional<StateReport> report = decode_state_report(text);
  if (!report) return;
  for (const Rank awaited : report->waits_for) {
    const std::optional<Rank> next = rank_in_group(awaited);
    if (next && !answer_of(*next)) ask(*next, inquiry_.sequence, inquiry_.operation);
  }
  inquiry_.answers[static_cast<std::size_t>(*member)] = std::move(report);
}

// "; 30 of 31 others have arrived", where that is known.
std::string Group::describe_arrived(const PendingOperation& operation) const {
  const bool collective = operation.sequence() != transport::kPointToPoint;
  if (!collective || !has_answers(operation) || inquiry_.answers.size() > kAskEverybodyMax)
    return {};
  const auto here = std::ranges::count_if(
      inquiry_.answers, [](const auto& answer) { return answer && answer->has_entered; });
  return fmt::format("; {} of {} others {} arrived", here, size() - 1, here == 1 ? "has" : "have");
}

// Before others are blamed. Empty if this rank has been running all the time.
std::string Group::describe_standstill(TimePoint since) const {
  const Duration still = engine_->stood_still(since);
  if (still == Duration::zero()) return {};
  return fmt::format(
      "; but this rank itself has stood still for {} (it was stopped, or had no "
      "core), and others may have waited for it",
      in_seconds(still));
}

Status Group::timed_out(const PendingOperation& operation) const {
  const Late late = find_late(operation);
  const TimePoint since = operation.deadline().set_at();
  const std::string standstill = describe_standstill(since);
  const std::optional<Rank> culprit =
      standstill.empty() ? late.culprit : membership_.job_rank(membership_.rank);
  std::string text = fmt::format(
      "timed out waiting for {}; waited {}{}{}", describe_late(late.ranks, has_answers(operation)),
      waited(Clock::now() - since), describe_arrived(operation), standstill);
  return in_context(&operation, {StatusCode::timeout, std::move(text), culprit});
}

// Long before time is up: whoever looks at the log can still do something about it.
void Group::warn(const PendingOperation& operation, TimePoint now) const {
  const TimePoint ends = operation.deadline().time();
  log(LogLevel::warning, "{} on rank {} has waited {} for {}{}{}. It goes on waiting{}",
      name_of(operation), membership_.job_rank(membership_.rank).value(),
      waited(now - operation.running_since()),
      describe_late(find_late(operation).ranks, has_answers(operation)),
      describe_arrived(operation), describe_standstill(operation.running_since()),
      ends == TimePoint::max() ? std::string()
                               : fmt::format(", {:.0f} s more at most", seconds(ends - now)));
}

// Those who have not entered the operation, even if this rank waits for others who wait for them.
// Where all have, those at the end of the chain of ranks that wait for each other; of a message,
// its other end as well.
Late Group::find_late(const PendingOperation& operation) const {
  Late late;
  const bool collective = operation.sequence() != transport::kPointToPoint;
  for (std::int32_t member = 0; collective && has_answers(operation) && member < size(); ++member) {
    const auto& answer = answer_of(member);
    if (answer && !answer->has_entered) late.ranks.push_back(member);
  }
  const bool all_have_entered = collective && late.ranks.empty();
  if (late.ranks.empty()) late.ranks = waiting_for(operation);
  const std::vector<Rank> roots = has_answers(operation) ? roots_of(late.ranks) : late.ranks;
  if (all_have_entered) late.ranks.clear();
  for (const Rank root : roots) {
    if (!std::ranges::count(late.ranks, root)) late.ranks.push_back(root);
  }
  // Of several, none is the one at fault.
  if (roots.size() == 1) late.culprit = membership_.job_rank(roots.front());
  return late;
}

// From rank to rank, by whom each says that it waits for: those who wait for nobody or say nothing.
// Where all wait for each other, those from whom it began.
std::vector<Rank> Group::roots_of(std::vector<Rank> waited_for) const {
  const std::vector<Rank> begin = waited_for;
  std::vector<Rank> roots;
  std::vector<bool> seen(membership_.members.size());
  seen[static_cast<std::size_t>(membership_.rank)] = true;
  while (!waited_for.empty()) {
    const Rank member = waited_for.back();
    waited_for.pop_back();
    if (seen[static_cast<std::size_t>(member)]) continue;
    seen[static_cast<std::size_t>(member)] = true;
    bool waits = false;
    const auto& answer = answer_of(member);
    for (const Rank awaited : answer ? answer->waits_for : std::vector<Rank>()) {
      const std::optional<Rank> next = rank_in_group(awaited);
      if (!next) continue;
      waits = true;
      waited_for.push_back(*next);
    }
    if (!waits) roots.push_back(member);
  }
  std::ranges::sort(roots);
  return roots.empty() ? begin : roots;
}

// In their own words, if `answered`: if it is they who have been asked last.
std::string Group::describe_late(const std::vector<Rank>& late, bool answered) const {
  std::string list;
  for (const Rank member : late) {
    list += (list.empty() ? "" : "; ") + engine_->name_of(membership_.job_rank(member));
    if (!answered) continue;
    const auto& answer = answer_of(member);
    list += ", which " + (answer ? answer->text : silence(Clock::now() - inquiry_.at));
  }
  return list.empty() ? "an earlier operation of the group" : list;
}

// "all_reduce(sum f32 [4]) #7"; nothing that only this library knows.
std::string Group::name_of(const PendingOperation& operation) const {
  if (!is_set_up_) return "the set-up of the communicator";
  if (operation.sequence() == transport::kPointToPoint) return describe(operation.operation());
  return fmt::format("{} #{}", describe(operation.operation()), operation.sequence());
}

// The last collective that has ended.
std::string Group::name_of_ended() const {
  // What took the fast path has left its number only.
  const std::uint32_t ended = ended_;
  const OperationDescriptor* past = past_.find(ended);
  return past != nullptr ? fmt::format("{} #{}", describe(*past), ended)
                         : fmt::format("#{}", ended);
}

// Where a rank is that is in no operation.
std::string Group::between_operations() const {
  if (!is_set_up_) return "while setting up the communicator";
  if (ended_ == 0) return "before the first collective";
  return fmt::format("between operations, after {}", name_of_ended());
}

std::vector<Rank> Group::in_job(std::vector<Rank> members) const {
  for (Rank& member : members) member = membership_.job_rank(member);
  return members;
}

// `group`: " of the group of ranks 0, 2", where it is not the one that was asked about.
StateReport Group::whereabouts(std::string_view group, std::string_view activity) const {
  const PendingOperation* operation = oldest();
  if (operation == nullptr && ended_ == 0) {
    return {.text = "has called no collective of the group; " + doing(activity)};
  }
  if (operation == nullptr) {
    return {.text = fmt::format("ended {} {} ago; {}", name_of_ended(),
                                in_seconds(Clock::now() - ended_at_), doing(activity))};
  }
  StateReport report{.waits_for = in_job(waiting_for(*operation))};
  report.text = fmt::format("is in {}{}", name_of(*operation), group);
  if (!report.waits_for.empty()) report.text += ", waiting for " + list_ranks(report.waits_for);
  return report;
}

std::optional<StateReport> Group::whereabouts_elsewhere() const {
  if (oldest() == nullptr) return std::nullopt;
  const bool everybody = size() == engine_->transport().size();
  return whereabouts(everybody ? " of another group of all ranks"
                               : " of the group of " + list_ranks(membership_.members),
                     {});
}

std::string Group::describe_state(std::uint32_t sequence, std::string_view activity) const {
  if (sequence == kAgreementSequence && !agreement_.begun()) {
    return encode({.text = "has not called shrink; " + doing(activity)});
  }
  if (sequence == kAgreementSequence) {
    return encode({true, in_job(agreement_.waiting_for()), "is in shrink, too"});
  }
  if (!failure_.ok()) return encode({true, {}, fmt::format("has failed: {}", failure_.message())});
  const bool entered = sequence < next_sequence_ && sequence != transport::kPointToPoint;
  if (entered && has_ended(sequence)) return encode({true, {}, "has ended it"});
  StateReport report = whereabouts({}, activity);
  report.has_entered = entered;
  // Perhaps it waits somewhere else.
  for (const Client* other : engine_->groups()) {
    if (entered || oldest() != nullptr) break;
    if (const auto elsewhere = other->whereabouts_elsewhere()) return encode(*elsewhere);
  }
  return encode(report);
}

std::string describe_absence(std::span<Client* const> groups, std::string_view activity) {
  StateReport report{.text = "does not have this group; " + doing(activity)};
  for (const Client* group : groups) {
    const auto elsewhere = group->whereabouts_elsewhere();
    if (!elsewhere) continue;
    report = *elsewhere;
    report.text.insert(0, "does not have this group and ");
    break;
  }
  return encode(report);
}

}  // namespace stretto::group

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
        ", which has not answered within {}: its program may be busy or asleep, or it is stopped",
        waited(asked));
  }
  return ", which does not answer: it is stopped, or so busy that no thread of it makes progress";
}

std::string doing(std::string_view activity) {
  return activity.empty() ? "in its own code" : fmt::format("in its own code: {}", activity);
}

}  // namespace

Explanation Group::explain(const OperationDescriptor& operation, std::string_view algorithm) {
  Explanation explanation{.links = selector_.links().source};
  Result<Choice> choice = selector_.choose(operation, algorithm, is_one_team(), true);
  if (!choice.ok()) choice = selector_.choose(operation, {}, is_one_team(), true);
  if (!choice.ok()) {
    explanation.reason = choice.status().message();
    return explanation;
  }
  const auto describe_plan = [&](const schedule::Algorithm& chosen, std::size_t segment_bytes) {
    const auto plan = make_plan(chosen, Submission{.operation = operation}, segment_bytes);
    explanation.segments = plan->segment_count();
    explanation.segment_bytes = plan->segment_bytes();
    return std::string(chosen.name);
  };
  if (choice->messages != nullptr) {
    explanation.algorithm = explanation.algorithm_registered = explanation.algorithm_huge_pages =
        describe_plan(*choice->messages, segment_bytes_of_messages());
    for (const auto& candidate : selector_.candidates(operation, true)) {
      explanation.candidates.push_back({std::string(candidate.algorithm->name), candidate.seconds});
    }
    explanation.reason = algorithm.empty() ? "the model of the links finds it cheapest among those "
                                             "that keep the canonical order"
                                           : "it was asked for";
    return explanation;
  }
  const schedule::Algorithm& registered =
      choice->direct != nullptr ? *choice->direct : *choice->staged;
  explanation.algorithm_registered = registered.name;
  const schedule::Algorithm& elsewhere =
      choice->staged != nullptr ? *choice->staged : *choice->direct;
  explanation.algorithm = describe_plan(elsewhere, execution::Window::kHalfBytes);
  const SingleCopy copies = single_copy_of(operation, *choice);
  explanation.algorithm_huge_pages =
      copies == SingleCopy::off ? explanation.algorithm : explanation.algorithm_registered;
  explanation.reason = fmt::format(
      "all ranks share memory: registered buffers are used where they lie, others pass through a "
      "window of staging memory{}{}",
      copies == SingleCopy::off      ? ""
      : copies == SingleCopy::always ? " or are copied once by the kernel"
                                     : " or, in huge pages, are copied once by the kernel",
      algorithm.empty() && operation.collective != Collective::barrier
          ? "; " + selector_.mapped_thresholds(operation.collective)
          : "");
  return explanation;
}

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
  if (&operation == oldest() || asked_at_ + kAnswersAreNew < now) {
    asked_ = sequence;
    asked_at_ = now;
    answers_.assign(membership_.members.size(), {});
  }
  const bool everybody =
      sequence != transport::kPointToPoint && membership_.members.size() <= kAskEverybodyMax;
  const auto ask = [&](Rank member) {
    if (member == membership_.rank) return;
    engine_->transport().inquire(membership_.job_rank(member), membership_.group, sequence,
                                 operation.operation());
  };
  if (!everybody) {
    for (const Rank member : waiting_for(operation)) ask(member);
    return;
  }
  for (std::int32_t member = 0; member < size(); ++member) ask(member);
}

void Group::state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member || sequence != asked_ || answers_.empty() || text.size() < 2) return;
  answers_[static_cast<std::size_t>(*member)] = text;
}

// "; 30 of 31 others have arrived", where that is known.
std::string Group::describe_arrived(const PendingOperation& operation) const {
  const bool collective = operation.sequence() != transport::kPointToPoint;
  if (!collective || !has_answers(operation) || answers_.size() > kAskEverybodyMax) return {};
  const auto here = std::ranges::count_if(
      answers_, [](const std::string& answer) { return answer.starts_with('+'); });
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
  const std::vector<Rank> late = late_ranks(operation);
  const TimePoint since = operation.deadline().set_at();
  const std::string standstill = describe_standstill(since);
  // Of several, none is the one at fault.
  std::optional<Rank> culprit;
  if (late.size() == 1) culprit = membership_.job_rank(late.front());
  if (!standstill.empty()) culprit = membership_.job_rank(membership_.rank);
  std::string text = fmt::format(
      "timed out waiting for {}; waited {}{}{}", describe_late(late, has_answers(operation)),
      waited(Clock::now() - since), describe_arrived(operation), standstill);
  return in_context(&operation, {StatusCode::timeout, std::move(text), culprit});
}

// Long before time is up: whoever looks at the log can still do something about it.
void Group::warn(const PendingOperation& operation, TimePoint now) const {
  const TimePoint ends = operation.deadline().time();
  log(LogLevel::warning, "{} on rank {} has waited {} for {}{}{}. It goes on waiting{}",
      name_of(operation), membership_.job_rank(membership_.rank).value(),
      waited(now - operation.running_since()),
      describe_late(late_ranks(operation), has_answers(operation)), describe_arrived(operation),
      describe_standstill(operation.running_since()),
      ends == TimePoint::max() ? std::string()
                               : fmt::format(", {:.0f} s more at most", seconds(ends - now)));
}

// Those who have not entered the operation are at the root of it, even if this rank waits for
// others who wait for them; else the one that says nothing, if all others have answered. Where all
// have entered, it is those for whom this rank waits.
std::vector<Rank> Group::late_ranks(const PendingOperation& operation) const {
  std::vector<Rank> late;
  for (std::int32_t member = 0; has_answers(operation) && member < size(); ++member) {
    if (answers_[static_cast<std::size_t>(member)].starts_with('-')) late.push_back(member);
  }
  const bool asked_everybody = has_answers(operation) && answers_.size() <= kAskEverybodyMax &&
                               operation.sequence() != transport::kPointToPoint;
  std::vector<Rank> silent;
  for (std::int32_t member = 0; asked_everybody && member < size(); ++member) {
    const bool is_silent = answers_[static_cast<std::size_t>(member)].empty();
    if (is_silent && member != membership_.rank.value()) silent.push_back(member);
  }
  if (late.empty() && silent.size() == 1) return silent;
  return late.empty() ? waiting_for(operation) : late;
}

// In their own words, if `answered`: if it is they who have been asked last.
std::string Group::describe_late(const std::vector<Rank>& late, bool answered) const {
  std::string list;
  for (const Rank member : late) {
    list +=
        fmt::format("{}rank {}", list.empty() ? "" : "; ", membership_.job_rank(member).value());
    if (!answered) continue;
    const std::string_view answer = answers_[static_cast<std::size_t>(member)];
    list +=
        answer.empty() ? silence(Clock::now() - asked_at_) : fmt::format(" {}", answer.substr(1));
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

std::string Group::whereabouts(std::string_view activity) const {
  if (const PendingOperation* operation = oldest()) {
    std::string list;
    for (const Rank member : waiting_for(*operation)) {
      list += fmt::format("{}{}", list.empty() ? "" : ", ", membership_.job_rank(member).value());
    }
    return fmt::format("is in {} of group {:x}, waiting for rank {}", name_of(*operation),
                       membership_.group, list.empty() ? "none" : list);
  }
  if (ended_ == 0) return fmt::format("has called no collective of the group; {}", doing(activity));
  return fmt::format("ended {} {} ago; {}", name_of_ended(), in_seconds(Clock::now() - ended_at_),
                     doing(activity));
}

std::string Group::describe_state(std::uint32_t sequence, std::string_view activity) const {
  const std::string who = engine_->name_of(membership_.job_rank(membership_.rank));
  if (sequence == kAgreementSequence && !agreement_.begun()) {
    return fmt::format("-{} has not called shrink; {}", who, doing(activity));
  }
  if (sequence == kAgreementSequence) return fmt::format("+{} is in shrink, too", who);
  if (!failure_.ok()) return fmt::format("+{} has failed: {}", who, failure_.message());
  const bool entered = sequence < next_sequence_ && sequence != transport::kPointToPoint;
  if (entered && has_ended(sequence)) return fmt::format("+{} has ended it", who);
  if (entered) return fmt::format("+{} {}", who, whereabouts(activity));
  if (oldest() != nullptr) return fmt::format("-{} {}", who, whereabouts(activity));
  // Perhaps it waits somewhere else.
  for (const Client* other : engine_->groups()) {
    if (other->is_in_operation()) return fmt::format("-{} {}", who, other->whereabouts(activity));
  }
  return fmt::format("-{} {}", who, whereabouts(activity));
}

std::string describe_absence(std::string_view name, std::span<Client* const> groups,
                             std::string_view activity) {
  for (const Client* group : groups) {
    if (!group->is_in_operation()) continue;
    return fmt::format("-{} does not have this group and {}", name, group->whereabouts(activity));
  }
  return fmt::format("-{} does not have this group; {}", name, doing(activity));
}

}  // namespace stretto::group

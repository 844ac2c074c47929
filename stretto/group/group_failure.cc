// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group fails: what it tells to whom when a rank is lost or late, or runs another operation.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// For how long after a standstill of this rank a lost peer may be its consequence.
constexpr std::chrono::seconds kStandstillSaidFor(60);

// The reason for which a group ends with its ancestor.
Status inherited(const Status& reason) {
  return reason.with_context("ended with the communicator of which it was made");
}

}  // namespace

void Group::fail(const Status& reason, bool announce) {
  if (!failure_.ok()) return;
  // This is the cause of all later failures.
  if (!told_in_set_up_.ok()) return fail_telling(told_in_set_up_, &told_in_set_up_, true);
  Status cause = reason;
  if (reason.code() == StatusCode::peer_lost) {
    const std::string standstill = describe_standstill(Clock::now() - kStandstillSaidFor);
    cause = Status(reason.code(),
                   fmt::format("{}{}{}", reason.message(), standstill, way_out(reason.rank())),
                   reason.rank());
  }
  const Status told = abandoned(cause);
  fail_telling(cause, announce ? &told : nullptr);
}

// What survivors can do about the loss of a rank of the job.
std::string_view Group::way_out(std::optional<Rank> lost) const {
  if (!lost || !operations_.is_set_up()) return {};
  const auto [status, left] = engine_->transport().peer_status(*lost);
  return status.ok() || left ? std::string_view() : "; survivors may call shrink()";
}

// The reason as the other members are told it.
Status Group::abandoned(const Status& cause) const {
  const Rank self = membership_.job_rank(membership_.rank);
  return cause.with_context(fmt::format("rank {} abandoned the group", self.value()));
}

// Sends `told`, if it is given, to all members. Each member passes it on, so that on every link
// this news arrives before the news that a rank has left because of it.
void Group::fail_telling(const Status& reason, const Status* told, bool by_others) {
  lane_.close();  // It is never opened again.
  failure_ = named(reason);
  // Before abandon(), or a member that has forgotten the group would hear of it again.
  if (told != nullptr) announce(*told);
  // The transport lets go of all buffers before their owners hear of the failure.
  engine_->transport().abandon(membership_.group, membership_.members, failure_);
  operations_.fail(failure_, by_others);
  mailbox_.fail(failure_);
  for (Group* other : engine_->groups()) other->note_failed_group(id(), failure_);
  // The program's CUDA graphs may wait on the device for a lost rank, although nothing is in flight
  // here.
  if (!is_leaving_) cache_.abandon_device_library();
}

void Group::announce(const Status& told) {
  using transport::GroupStage;
  GroupStage stage = GroupStage::set_up;
  if (operations_.is_set_up()) stage = is_aborted_ ? GroupStage::aborted : GroupStage::in_use;
  engine_->transport().announce_abort(membership_.group, membership_.members, told, stage);
}

void Group::abort(const Status& reason) { abort_telling(reason, abandoned(reason)); }

// A group that has failed before is aborted as well, because its descendants may not have failed.
// The youngest descendants go first, so that each reports the group that the program aborted.
void Group::abort_telling(const Status& reason, const Status& told, bool by_others) {
  if (std::exchange(is_aborted_, true)) return;
  const auto groups = engine_->groups();
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    if ((*group)->descends_from(id())) (*group)->abort(inherited(reason));
  }
  failure_.ok() ? fail_telling(reason, &told, by_others) : announce(told);
}

void Group::fail_with_until_set_up(const Group& parent) {
  parent_in_set_up_ = parent.id();
  if (parent.is_aborted_) abort(inherited(parent.failure_));
  if (!parent.failure_.ok()) note_failed_group(parent.id(), parent.failure_);
}

void Group::note_failed_group(std::uint64_t group, const Status& reason) {
  if (parent_in_set_up_ == group) fail(inherited(reason), true);
}

void Group::unwind(const PendingOperation* operation) {
  if (operation == nullptr) {
    farewell_ = transport::Farewell::unwinding;
    operation = oldest();
  }
  if (operation != nullptr && !operation->done()) {
    const Rank self = membership_.job_rank(membership_.rank);
    const std::string text = fmt::format(
        "abandoned: an exception unwound the stack of rank {} before the operation had ended; what "
        "was thrown, only rank {} itself can say: see its output",
        self.value(), self.value());
    fail(in_context(operation, Status(StatusCode::aborted, text, self)), true);
  }
}

// The first cause wins: a failed operation is reported before news that arrived with it, for
// example that a rank has left because of it.
void Group::tell_what_has_failed() {
  operations_.take_completions();
  if (const auto* failed = operations_.find_failed()) {
    return fail(in_context(failed->collective.get(), failed->execution->status()), true);
  }
  if (failure_.ok()) retire_messages();
}

// Called when this rank leaves in good order. Tells its last operation to all members. A member
// that believes the last operation was another one would wait in vain, and is to hear of the
// mismatch, not only that this rank has left.
void Group::tell_last_operation() {
  const std::uint32_t last = operations_.last_ended();
  const OperationDescriptor* operation = operations_.find_past(last);
  if (operation == nullptr || !failure_.ok()) return;
  for (const Rank member : membership_.members) {
    engine_->transport().inquire(member, membership_.group, last, *operation);
  }
}

void Group::member_lost(Rank job_rank, const Status& status) {
  tell_what_has_failed();
  const std::optional<Rank> member = rank_in_group(membership_, job_rank);
  if (!member) return;
  note_departed(*member, status);
  if (!failure_.ok()) return;
  lane_.close();  // An operation on the fast path becomes one that can be named.
  if (const PendingOperation* operation = oldest())
    return fail(in_context(operation, status), true);
  const Status& said = departed_[*member];
  const Rank self = membership_.job_rank(membership_.rank);
  fail(
      said.with_context(fmt::format("rank {}: {}", self.value(), operations_.between_operations())),
      true);
}

// A rank that leaves in good order has ended its part of all operations, so those in flight may
// still end well.
void Group::member_left(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(membership_, job_rank);
  if (!member) return;
  note_departed(*member, status);
  any_departed_ = true;
}

// Fails the group if an operation waits for a rank that has left.
void Group::check_departed() {
  compare_beliefs();
  if (!failure_.ok()) return;
  for (const auto& item : operations_.running()) {
    // A library that runs it does not say for whom it waits; but all have entered, so a rank that
    // has left has done its part. An execution whose device works waits for no rank meanwhile: if
    // it still stages, a rank that has left without entering is found once this rank has posted.
    if (item.execution->must_be_asked()) continue;
    for (const Rank member : item.execution->waiting_for()) {
      const Status& why = departed_[member];
      if (why.ok()) continue;
      return fail(in_context(item.collective.get(), why), true);
    }
  }
  // All that a departed rank had sent has arrived by now, and it receives nothing any more.
  const auto others = std::ranges::count_if(departed_, [](const Status& s) { return s.ok(); }) - 1;
  for (const auto& message : mailbox_.in_flight()) {
    if (message->done()) continue;
    if (!message->peer && others == 0) {
      const Status alone(StatusCode::peer_lost, "all other ranks have left");
      return fail(in_context(message.get(), alone), true);
    }
    if (!message->peer) continue;
    const Status& why = departed_[*message->peer];
    if (!why.ok()) return fail(in_context(message.get(), why), true);
  }
}

void Group::disagree(const Belief& belief, const OperationDescriptor& ours) {
  const Rank self = membership_.job_rank(membership_.rank);
  const Status status = transport::mismatch_status({belief.from, belief.operation, belief.sequence},
                                                   {self, ours, belief.sequence});
  fail(in_context(nullptr, status), true);
}

// Returns whether this rank knows the operation. Fails the group if `belief` differs from it.
bool Group::compare(const Belief& belief) {
  const OperationDescriptor* known = operations_.find(belief.sequence);
  if (known == nullptr || !operations_.is_of_this_numbering(belief.sequence)) return false;
  OperationDescriptor ours = *known;
  // Each of its messages has its own count, which the receive compares.
  if (execution::counts_by_message(ours)) ours.count = belief.operation.count;
  if (!(ours == belief.operation)) disagree(belief, ours);
  return true;
}

void Group::unexpected_message(Rank from, std::uint32_t sequence,
                               const OperationDescriptor& operation) {
  if (sequence == transport::kPointToPoint || !failure_.ok()) return;
  const Belief belief{.from = from, .sequence = sequence, .operation = operation};
  lane_.close();  // So that an operation on the fast path is seen.
  if (operations_.is_running(sequence)) {
    compare(belief);
  } else if (operations_.has_ended(sequence)) {
    // An operation receives all its messages before it ends, so the sender believes that this was
    // another operation.
    const OperationDescriptor* ours = operations_.find_past(sequence);
    if (ours != nullptr) {
      disagree(belief, *ours);
    } else {
      const Status status(StatusCode::mismatch,
                          fmt::format("rank {} called {} as operation #{}, which has been another "
                                      "one here, long ago",
                                      from.value(), describe(operation), sequence),
                          from);
      fail(in_context(nullptr, status), true);
    }
  }
  open_lane();
}

// Only messages with data carry the sender's operation, so ranks that only wait for each other
// would never notice a mismatch. Therefore each rank asks the others and tells in which operation
// it waits.
void Group::asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  const bool of_set_up = sequence >= transport::kSetUpSequence && operations_.is_set_up();
  if (of_set_up || !rank_in_group(membership_, from) || !failure_.ok()) return;
  beliefs_.push_back({.from = from, .sequence = sequence, .operation = operation});
  // A peer has no more operations in flight, except those that it has left to a device.
  if (beliefs_.size() > OperationQueue::kRunningMax * membership_.members.size())
    beliefs_.erase(beliefs_.begin());
  compare_beliefs();
}

// Keeps beliefs about operations that this rank has not begun.
void Group::compare_beliefs() {
  if (beliefs_.empty()) return;
  lane_.close();
  std::vector<Belief> beliefs;
  beliefs.swap(beliefs_);
  for (const Belief& belief : beliefs) {
    if (!failure_.ok()) return;
    if (!compare(belief) && !operations_.has_ended(belief.sequence)) beliefs_.push_back(belief);
  }
  open_lane();
}

// A rank that has finished the set-up has sent all that this rank needs to finish it as well. So
// the group is made here, too, and its first operation fails. Otherwise timing would decide whether
// a rank gets a failed group or cannot make the group.
void Group::aborted(Rank from, const Status& told, transport::GroupStage stage) {
  if (!rank_in_group(membership_, from)) return;
  if (failure_.ok()) tell_what_has_failed();
  if (stage == transport::GroupStage::aborted && operations_.is_set_up()) {
    return abort_telling(told, told, true);
  }
  if (!failure_.ok()) return;
  if (stage == transport::GroupStage::set_up || operations_.is_set_up()) {
    fail_telling(told, &told, true);
  } else if (told_in_set_up_.ok()) {
    told_in_set_up_ = told;
  }
}

void Group::check_deadlines(TimePoint now) {
  if (!failure_.ok()) return;
  operations_.note_ended(now);
  compare_beliefs();
  if (!failure_.ok()) return;
  const Engine::Options& options = engine_->options();
  // Returns whether the group goes on.
  const auto check = [&](PendingOperation& operation, Duration ask_after)
                         STRETTO_REQUIRES(engine_held) {
                           if (operation.asks_at(now, ask_after)) ask_others(operation, now);
                           if (operation.warns_at(now) && &operation == oldest())
                             warn(operation, now);
                           if (operation.done() || operation.deadline().time() > now) return true;
                           fail(timed_out(operation), true);
                           return false;
                         };
  for (const auto& item : operations_.running()) {
    item.collective->runs_since(now, options.warn_after);
    if (!check(*item.collective, options.heartbeat)) return;
  }
  for (std::size_t i = 0; i < operations_.queued().size(); ++i) {
    if (!check(*operations_.queued()[i].collective, Duration::zero())) return;
  }
  for (const auto& message : mailbox_.in_flight()) {
    message->runs_since(now, options.warn_after);
    if (!check(*message, Duration::zero())) return;
  }
}

}  // namespace stretto::group

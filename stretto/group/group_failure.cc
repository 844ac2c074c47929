// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group fails: what is told to whom when a rank is lost, late, or of another opinion.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// Whoever stood still so long ago may have been given up for that.
constexpr std::chrono::seconds kStandstillSaidFor(60);

// Why a group ends with one of which it was made.
Status inherited(const Status& reason) {
  return reason.with_context("ended with the communicator of which it was made");
}

}  // namespace

void Group::fail(const Status& reason, bool announce) {
  if (!failure_.ok()) return;
  // The cause of whatever else has gone wrong.
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

// What is left to those who survive the loss of a rank of the job.
std::string_view Group::way_out(std::optional<Rank> lost) const {
  if (!lost || !operations_.is_set_up()) return {};
  const auto [status, left] = engine_->transport().peer_status(*lost);
  return status.ok() || left ? std::string_view() : "; survivors may call shrink()";
}

// As the other members are told.
Status Group::abandoned(const Status& cause) const {
  const Rank self = membership_.job_rank(membership_.rank);
  return cause.with_context(fmt::format("rank {} abandoned the group", self.value()));
}

// `told`, where given, goes to all members. Each passes on what it is told: the news must not come
// later than that a rank has left because of it, on whichever link.
void Group::fail_telling(const Status& reason, const Status* told, bool by_others) {
  lane_.close();  // For good.
  failure_ = named(reason);
  // Before the group is abandoned, or a member that has forgotten it would hear of it anew.
  if (told != nullptr) announce(*told);
  // First the transport lets go of all buffers, then their owners hear of it.
  engine_->transport().abandon(membership_.group, membership_.members, failure_);
  operations_.fail(failure_, by_others);
  mailbox_.fail(failure_);
  for (Group* other : engine_->groups()) other->note_failed_group(id(), failure_);
  // Graphs of the program may wait on the device for who is lost, though nothing is in flight here.
  if (!is_leaving_) cache_.abandon_device_library();
}

void Group::announce(const Status& told) {
  using transport::GroupStage;
  GroupStage stage = GroupStage::set_up;
  if (operations_.is_set_up()) stage = is_aborted_ ? GroupStage::aborted : GroupStage::in_use;
  engine_->transport().announce_abort(membership_.group, membership_.members, told, stage);
}

void Group::abort(const Status& reason) { abort_telling(reason, abandoned(reason)); }

// Also what has failed before is aborted: the groups that were made of it may not have. The
// youngest go first, so that each ends with the one of which the program says so.
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

// The first cause wins: what has gone wrong in an operation comes before the news that arrive with
// it, of one who has left because of it, say.
void Group::tell_what_has_failed() {
  operations_.take_completions();
  if (const auto* failed = operations_.find_failed()) {
    return fail(in_context(failed->collective.get(), failed->execution->status()), true);
  }
  if (failure_.ok()) retire_messages();
}

// Of a rank that leaves in good order. Those who believe that they did something else together wait
// for it in vain: they are to hear of that, not only that it has left.
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
  lane_.close();  // What runs on the fast path becomes an operation with a name.
  if (const PendingOperation* operation = oldest())
    return fail(in_context(operation, status), true);
  const Status& said = departed_[*member];
  const Rank self = membership_.job_rank(membership_.rank);
  fail(
      said.with_context(fmt::format("rank {}: {}", self.value(), operations_.between_operations())),
      true);
}

// A rank that leaves in good order has ended its part of everything; what is in flight may well
// end.
void Group::member_left(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(membership_, job_rank);
  if (!member) return;
  note_departed(*member, status);
  any_departed_ = true;
}

// Fails what waits for a rank that has left.
void Group::check_departed() {
  compare_beliefs();
  if (!failure_.ok()) return;
  for (const auto& item : operations_.running()) {
    if (item.execution->must_be_asked()) continue;  // Who has left has done its part.
    for (const Rank member : item.execution->waiting_for()) {
      const Status& why = departed_[member];
      if (why.ok()) continue;
      return fail(in_context(item.collective.get(), why), true);
    }
  }
  // What such a rank had sent is here by now, and it takes nothing any more.
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

// Whether this rank knows what the operation is; fails if another believes otherwise.
bool Group::compare(const Belief& belief) {
  const OperationDescriptor* known = operations_.find(belief.sequence);
  if (known == nullptr || !operations_.is_of_this_numbering(belief.sequence)) return false;
  OperationDescriptor ours = *known;
  // Each of its messages has a count of its own, which its receive compares.
  if (execution::counts_by_message(ours)) ours.count = belief.operation.count;
  if (!(ours == belief.operation)) disagree(belief, ours);
  return true;
}

void Group::unexpected_message(Rank from, std::uint32_t sequence,
                               const OperationDescriptor& operation) {
  if (sequence == transport::kPointToPoint || !failure_.ok()) return;
  const Belief belief{.from = from, .sequence = sequence, .operation = operation};
  lane_.close();  // What runs on the fast path is to be seen.
  if (operations_.is_running(sequence)) {
    compare(belief);
  } else if (operations_.has_ended(sequence)) {
    // An operation takes all its messages before it ends: this one belongs to another idea of it.
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

// Only data carries what its sender believes, so ranks that only wait for each other would never
// find out: each asks the others, and says in what it waits.
void Group::asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  const bool of_set_up = sequence >= transport::kSetUpSequence && operations_.is_set_up();
  if (of_set_up || !rank_in_group(membership_, from) || !failure_.ok()) return;
  beliefs_.push_back({.from = from, .sequence = sequence, .operation = operation});
  // A peer has no more in flight, but for what it has left to a device.
  if (beliefs_.size() > OperationQueue::kRunningMax * membership_.members.size())
    beliefs_.erase(beliefs_.begin());
  compare_beliefs();
}

// Those about operations that this rank has not begun stay.
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

// Whoever has set the group up has done all that this rank needs of it to do so as well: the group
// is made here, too, and its first operation fails. Otherwise it would go by who is faster whether
// a rank has a group that failed, or could not make it.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group fails: what is told to whom when a rank is lost, late, or of another opinion.

#include <algorithm>

#include <fmt/format.h>

#include "stretto/group/group.h"

namespace stretto::group {

void Group::fail(const Status& reason, bool announce) {
  if (!failure_.ok()) return;
  const Rank self = membership_.job_rank(membership_.rank);
  const Status told(reason.code(),
                    fmt::format("rank {} gave up: {}", self.value(), reason.message()),
                    reason.rank());
  fail_telling(reason, announce ? &told : nullptr);
}

// `told`, where given, goes to all members. Each passes on what it is told: the news must not come
// later than that a rank has left because of it, on whichever link.
void Group::fail_telling(const Status& reason, const Status* told, bool by_others) {
  close_gate();  // For good.
  failure_ = reason;
  transport::Transport& transport = engine_->transport();
  // Before the group is given up, or a member that has forgotten it would hear of it anew.
  if (told != nullptr) transport.announce_abort(membership_.group, membership_.members, *told);
  // First the transport lets go of all buffers, then their owners hear of it.
  transport.give_up(membership_.group, membership_.members, reason);
  for (Running& running : running_) {
    const bool ended_well = by_others && end_on_own(running);
    if (!ended_well) running.execution->fail(reason);
    running.collective->finish(ended_well ? Status() : reason);
  }
  while (!queue_.empty()) {
    queue_.front().collective->finish(reason);
    queue_.pop();
  }
  mailbox_.fail(reason);
}

void Group::unwind(const PendingOperation* operation) {
  if (operation == nullptr) operation = oldest();
  if (operation == nullptr) {
    farewell_ = transport::Farewell::unwinding;
  } else if (!operation->done()) {
    const Rank self = membership_.job_rank(membership_.rank);
    const std::string text = fmt::format(
        "abandoned: an exception unwound the stack of rank {} before the operation had ended; what "
        "was thrown, only rank {} itself can say: see its output",
        self.value(), self.value());
    fail(in_context(operation, Status(StatusCode::aborted, text, self)), true);
  }
}

// Those who gave up a later operation have done all that this rank's earlier one needs of them: on
// mapped memory it can be ended without them, and then it is no victim.
bool Group::end_on_own(Running& running) {
  if (!running.execution->end_without_transport()) return false;
  execution::Turn turn(engine_->transport(), execution::kUnlimited);
  if (running.collective->packing) running.collective->packing->unpack(turn);
  return true;
}

std::optional<Rank> Group::rank_in_group(Rank job_rank) const {
  const auto& members = membership_.members;
  const auto found = std::find(members.begin(), members.end(), job_rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - members.begin());
}

// The first cause wins: what has gone wrong in an operation comes before the news that arrive with
// it, of one who has left because of it, say.
void Group::tell_what_has_failed() {
  for (const Running& running : running_) {
    running.execution->take_completions();
    const Status& status = running.execution->status();
    if (!status.ok()) return fail(in_context(running.collective.get(), status), true);
  }
  if (failure_.ok()) retire_messages();
}

// Of a rank that leaves in good order. Those who believe that they did something else together wait
// for it in vain: they are to hear of that, not only that it has left.
void Group::tell_last_operation() {
  const std::uint32_t last = ended_;
  const OperationDescriptor* operation = past_.find(last);
  if (operation == nullptr || !failure_.ok()) return;
  for (const Rank member : membership_.members) {
    engine_->transport().inquire(member, membership_.group, last, *operation);
  }
}

void Group::member_lost(Rank job_rank, const Status& status) {
  tell_what_has_failed();
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member) return;
  note_departed(*member, status);
  if (!failure_.ok()) return;
  close_gate();  // What runs on the fast path becomes an operation with a name.
  if (const PendingOperation* operation = oldest())
    return fail(in_context(operation, status), true);
  const Status& said = departed_[static_cast<std::size_t>(*member)];
  const Rank self = membership_.job_rank(membership_.rank);
  fail(said.with_context(fmt::format("rank {}: {}", self.value(), between_operations())), true);
}

// A rank that leaves in good order has ended its part of everything; what is in flight may well
// end.
void Group::member_left(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member) return;
  note_departed(*member, status);
  any_departed_ = true;
}

// Fails what waits for a rank that has left.
void Group::check_departed() {
  compare_beliefs();
  if (!failure_.ok()) return;
  for (const Running& running : running_) {
    for (const Rank member : running.execution->waiting_for()) {
      const Status& departed = departed_[static_cast<std::size_t>(member)];
      if (departed.ok()) continue;
      return fail(in_context(running.collective.get(), departed), true);
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
    const Status& departed = departed_[static_cast<std::size_t>(*message->peer)];
    if (!departed.ok()) return fail(in_context(message.get(), departed), true);
  }
}

// Numbers begin anew when a group has been set up.
bool Group::is_of_this_numbering(std::uint32_t sequence) const {
  return (sequence >= transport::kSetUpSequence) != is_set_up_;
}

bool Group::has_ended(std::uint32_t sequence) const {
  if (!is_of_this_numbering(sequence) || sequence >= next_sequence_) return false;
  return !is_running(sequence) &&
         (queue_.empty() || sequence < queue_.front().collective->sequence());
}

const OperationDescriptor* Group::running_operation(std::uint32_t sequence) const {
  for (const Running& running : running_) {
    if (running.collective->sequence() == sequence) return &running.collective->operation();
  }
  return nullptr;
}

void Group::disagree(const Belief& belief, const OperationDescriptor& ours) {
  const Rank self = membership_.job_rank(membership_.rank);
  const Status status =
      transport::mismatch_status(belief.from, belief.operation, self, ours, belief.sequence);
  fail(in_context(nullptr, status), true);
}

// Whether this rank knows what the operation is; fails if another believes otherwise.
bool Group::compare(const Belief& belief) {
  const OperationDescriptor* known = running_operation(belief.sequence);
  if (known == nullptr) known = past_.find(belief.sequence);
  if (known == nullptr || !is_of_this_numbering(belief.sequence)) return false;
  OperationDescriptor ours = *known;
  // Each of its messages has a count of its own, which its receive compares.
  if (execution::counts_by_message(ours)) ours.count = belief.operation.count;
  if (!(ours == belief.operation)) disagree(belief, ours);
  return true;
}

void Group::message_early(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  if (sequence == transport::kPointToPoint || !failure_.ok()) return;
  const Belief belief{.from = from, .sequence = sequence, .operation = operation};
  close_gate();  // What runs on the fast path is to be seen.
  if (is_running(sequence)) {
    compare(belief);
  } else if (has_ended(sequence)) {
    // An operation takes all its messages before it ends: this one belongs to another idea of it.
    const OperationDescriptor* ours = past_.find(sequence);
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
  open_gate();
}

// Only data carries what its sender believes, so ranks that only wait for each other would never
// find out: each asks the others, and says in what it waits.
void Group::asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  const bool of_set_up = sequence >= transport::kSetUpSequence && is_set_up_;
  if (of_set_up || !rank_in_group(from) || !failure_.ok()) return;
  beliefs_.push_back({.from = from, .sequence = sequence, .operation = operation});
  // A peer has no more in flight.
  if (beliefs_.size() > kRunningMax * membership_.members.size()) beliefs_.erase(beliefs_.begin());
  compare_beliefs();
}

// Those about operations that this rank has not begun stay.
void Group::compare_beliefs() {
  if (beliefs_.empty()) return;
  close_gate();
  std::vector<Belief> beliefs;
  beliefs.swap(beliefs_);
  for (const Belief& belief : beliefs) {
    if (!failure_.ok()) return;
    if (!compare(belief) && !has_ended(belief.sequence)) beliefs_.push_back(belief);
  }
  open_gate();
}

void Group::aborted(const Status& told) {
  tell_what_has_failed();
  if (failure_.ok()) fail_telling(told, &told, true);
}

void Group::check_deadlines(TimePoint now) {
  if (!failure_.ok()) return;
  if (const std::uint32_t ended = ended_; ended != ended_noticed_) {
    ended_noticed_ = ended;
    ended_at_ = now;
    report_ended(ended);
  }
  compare_beliefs();
  if (!failure_.ok()) return;
  const Engine::Options& options = engine_->options();
  // Returns whether the group goes on.
  const auto check = [&](PendingOperation& operation, Duration ask_after) {
    if (operation.asks_at(now, ask_after)) ask_others(operation, now);
    if (operation.warns_at(now) && &operation == oldest()) warn(operation, now);
    if (operation.done() || operation.deadline().time() > now) return true;
    fail(timed_out(operation), true);
    return false;
  };
  for (const Running& running : running_) {
    running.collective->runs_since(now, options.warn_after);
    if (!check(*running.collective, options.heartbeat)) return;
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (!check(*queue_[i].collective, Duration::zero())) return;
  }
  for (const auto& message : mailbox_.in_flight()) {
    message->runs_since(now, options.warn_after);
    if (!check(*message, Duration::zero())) return;
  }
}

// The operation that has been in flight longest: what this rank "was doing".
const PendingOperation* Group::oldest() const {
  if (!running_.empty()) return running_.front().collective.get();
  if (!queue_.empty()) return queue_.front().collective.get();  // It is being packed.
  for (const auto& message : mailbox_.in_flight()) {
    if (!message->done()) return message.get();
  }
  return nullptr;
}

Status Group::in_context(const PendingOperation* operation, const Status& cause) const {
  // What a rank has said when it left the group says more than the end of its link, which came
  // later.
  const std::optional<Rank> gone = cause.rank() ? rank_in_group(*cause.rank()) : std::nullopt;
  const bool has_said = gone && cause.code() == StatusCode::peer_lost &&
                        !departed_[static_cast<std::size_t>(*gone)].ok();
  const Status& said = has_said ? departed_[static_cast<std::size_t>(*gone)] : cause;
  const int self = membership_.job_rank(membership_.rank).value();
  if (operation == nullptr) return said.with_context(fmt::format("rank {}", self));
  return said.with_context(fmt::format("{} on rank {}", name_of(*operation), self));
}

}  // namespace stretto::group

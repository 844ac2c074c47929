// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group fails: what is told to whom when a rank is lost, late, or of another opinion.

#include <algorithm>

#include <fmt/format.h>

#include "stretto/communicator/group.h"

namespace stretto::communicator {

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
  if (running.entry->mapped == nullptr) return false;
  running.execution->advance();
  const bool ended_well = running.execution->ended() && running.execution->status().ok();
  if (ended_well && running.collective->packing) running.collective->packing->unpack();
  return ended_well;
}

std::optional<Rank> Group::rank_in_group(Rank job_rank) const {
  const auto& members = membership_.members;
  const auto found = std::find(members.begin(), members.end(), job_rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - members.begin());
}

void Group::member_lost(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member) return;
  note_departed(*member, status);
  fail(in_context(oldest(), status), true);
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

bool Group::has_ended(std::uint32_t sequence) const {
  if (sequence >= next_sequence_) return false;
  for (const Running& running : running_) {
    if (running.collective->sequence() == sequence) return false;
  }
  return queue_.empty() || sequence < queue_.front().collective->sequence();
}

void Group::message_early(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  if (sequence == transport::kPointToPoint || !failure_.ok()) return;
  const Rank self = membership_.job_rank(membership_.rank);
  const auto disagree = [&](const OperationDescriptor& ours) {
    const Status status = transport::mismatch_status(from, operation, self, ours, sequence);
    fail(in_context(nullptr, status), true);
  };
  for (const Running& running : running_) {
    if (running.collective->sequence() != sequence) continue;
    OperationDescriptor ours = running.collective->operation();
    // Each of its messages has a count of its own, which its receive compares.
    if (counts_by_message(ours)) ours.count = operation.count;
    if (!(ours == operation)) disagree(ours);
    return;
  }
  // An operation takes all its messages before it ends: this one belongs to another idea of it.
  const Past& past = past_[sequence % kPastOperations];
  if (has_ended(sequence) && past.sequence == sequence) disagree(past.operation);
}

// Others may be on mapped memory where this rank runs by messages: they wait for its post, and send
// nothing that would tell.
void Group::compare_posts() {
  if (!windows_ || running_.empty() || running_.front().entry->messages == nullptr) return;
  const PendingCollective& ours = *running_.front().collective;
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    // The post behind the last one that all have entered. Its owner cannot go on from it, hence not
    // write it again, before this rank has entered, too.
    const Post& post = windows_->of[i]->posts[windows_->entered % 2];
    if (post.entered.load(std::memory_order_acquire) != windows_->entered + 1) continue;
    if (post.sequence != ours.sequence()) continue;
    const Status status = transport::mismatch_status(membership_.members[i], post.operation,
                                                     membership_.job_rank(membership_.rank),
                                                     ours.operation(), ours.sequence());
    return fail(in_context(&ours, status), true);
  }
}

void Group::aborted(const Status& told) {
  if (failure_.ok()) fail_telling(told, &told, true);
}

void Group::check_deadlines(TimePoint now) {
  if (!failure_.ok()) return;
  if (const std::uint32_t ended = ended_; ended != ended_noticed_) {
    ended_noticed_ = ended;
    ended_at_ = now;
    report_ended(ended);
  }
  compare_posts();
  if (!failure_.ok()) return;
  // Returns whether the group goes on.
  const auto check = [&](PendingOperation& operation) {
    if (operation.asks_at(now)) ask_others(operation);
    if (operation.done() || operation.deadline().time() > now) return true;
    fail(timed_out(operation), true);
    return false;
  };
  for (const Running& running : running_) {
    if (!check(*running.collective)) return;
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (!check(*queue_[i].collective)) return;
  }
  for (const auto& message : mailbox_.in_flight()) {
    if (!check(*message)) return;
  }
}

// The operation that has been in flight longest: what this rank "was doing".
const PendingOperation* Group::oldest() const {
  if (!running_.empty()) return running_.front().collective.get();
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
  const bool numbered = operation->sequence() != transport::kPointToPoint;
  return said.with_context(
      fmt::format("{}{} on rank {}", describe(operation->operation()),
                  numbered ? fmt::format(" #{}", operation->sequence()) : std::string(), self));
}

}  // namespace stretto::communicator

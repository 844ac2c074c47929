// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a group fails: what is told to whom when a rank is lost, late, or of another opinion.

#include <algorithm>

#include <fmt/format.h>

#include "stretto/communicator/group.h"

namespace stretto::communicator {

void Group::fail(const Status& reason, bool announce) {
  if (!failure_.ok()) return;
  failure_ = reason;
  transport::Transport& transport = engine_->transport();
  // First the transport lets go of all buffers, then their owners hear of it.
  transport.forget(membership_.group, reason);
  for (Running& running : running_) {
    running.execution->fail(reason);
    running.collective->finish(reason);
  }
  while (!queue_.empty()) {
    queue_.front().collective->finish(reason);
    queue_.pop();
  }
  for (const auto& message : messages_) message->finish(reason);
  messages_.clear();
  if (announce) transport.announce_abort(membership_.group, reason);
}

std::optional<Rank> Group::rank_in_group(Rank job_rank) const {
  const auto& members = membership_.members;
  const auto found = std::find(members.begin(), members.end(), job_rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - members.begin());
}

void Group::member_lost(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member || !failure_.ok()) return;
  departed_[static_cast<std::size_t>(*member)] = status;
  fail(in_context(oldest(), status), true);
}

// A rank that leaves in good order has ended its part of everything; what is in flight may well
// end.
void Group::member_left(Rank job_rank, const Status& status) {
  const std::optional<Rank> member = rank_in_group(job_rank);
  if (!member || !failure_.ok()) return;
  departed_[static_cast<std::size_t>(*member)] = status;
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
}

void Group::message_early(Rank from, std::uint32_t sequence, const OperationDescriptor& operation) {
  for (const Running& running : running_) {
    const PendingCollective& ours = *running.collective;
    if (ours.sequence() != sequence || ours.operation() == operation) continue;
    const Rank self = membership_.job_rank(membership_.rank);
    return fail(transport::mismatch_status(from, operation, self, ours.operation(), sequence),
                true);
  }
}

void Group::aborted_by(Rank from, const Status& reason) {
  if (!failure_.ok()) return;
  const Status told(reason.code(),
                    fmt::format("rank {} gave up: {}", from.value(), reason.message()),
                    reason.rank());
  fail(told, false);
}

void Group::check_deadlines(TimePoint now) {
  if (!failure_.ok()) return;
  const auto late = [&](const PendingOperation& operation) {
    return !operation.done() && operation.deadline().time() <= now;
  };
  for (const Running& running : running_) {
    if (late(*running.collective)) return fail(timed_out(*running.collective), true);
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (late(*queue_[i].collective)) return fail(timed_out(*queue_[i].collective), true);
  }
  for (const auto& message : messages_) {
    if (late(*message)) return fail(timed_out(*message), true);
  }
}

Status Group::timed_out(const PendingOperation& operation) const {
  return in_context(&operation, status_of(StatusCode::timeout, "timed out waiting for {}",
                                          late_ranks(operation)));
}

std::string Group::late_ranks(const PendingOperation& operation) const {
  std::string list;
  const auto add = [&](Rank member) {
    list +=
        fmt::format("{}rank {}", list.empty() ? "" : ", ", membership_.job_rank(member).value());
  };
  for (const auto& message : messages_) {
    if (message.get() == &operation) add(message->peer);
  }
  for (const Running& running : running_) {
    if (running.collective.get() != &operation) continue;
    for (const Rank member : running.execution->waiting_for()) add(member);
  }
  return list.empty() ? "an earlier operation of the group" : list;
}

// The operation that has been in flight longest: what this rank "was doing".
const PendingOperation* Group::oldest() const {
  if (!running_.empty()) return running_.front().collective.get();
  for (const auto& message : messages_) {
    if (!message->done()) return message.get();
  }
  return nullptr;
}

Status Group::in_context(const PendingOperation* operation, const Status& cause) const {
  const int self = membership_.job_rank(membership_.rank).value();
  if (operation == nullptr) return cause.with_context(fmt::format("rank {}", self));
  const bool numbered = operation->sequence() != transport::kPointToPoint;
  return cause.with_context(
      fmt::format("{}{} on rank {}", describe(operation->operation()),
                  numbered ? fmt::format(" #{}", operation->sequence()) : std::string(), self));
}

// For the launcher: "all_reduce(sum f32 [1024]) #7" is the last thing it knows of a rank that is
// killed.
void Group::report(const PendingCollective& collective) const {
  const auto& report_activity = engine_->options().report_activity;
  if (!report_activity) return;
  report_activity(fmt::format("{} #{}", describe(collective.operation()), collective.sequence()));
}

}  // namespace stretto::communicator

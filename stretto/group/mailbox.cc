// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/mailbox.h"

namespace stretto::group {
namespace {

constexpr std::size_t kPoolMax = 64;

}  // namespace

std::shared_ptr<PendingMessage> Mailbox::pooled() {
  if (auto idle = find_idle(pool_)) return idle;
  auto message = std::make_shared<PendingMessage>(engine_, membership_->group);
  if (pool_.size() < kPoolMax) pool_.push_back(message);
  return message;
}

std::shared_ptr<PendingMessage> Mailbox::submit(const Message& message) {
  // Messages that have ended since the last turn can be reused at once.
  take_completions();
  std::erase_if(in_flight_, [](const auto& m) { return m->done(); });
  std::shared_ptr<PendingMessage> pending = pooled();
  pending->begin(message.operation, transport::kPointToPoint, message.deadline);
  pending->sends = message.sends;
  pending->tag = message.tag;
  pending->peer = message.peer == kAnyRank ? std::nullopt : std::optional(message.peer);
  pending->posted = false;
  transport::Request& request = pending->request;
  request.key = {.group = membership_->group,
                 .sequence = transport::kPointToPoint,
                 .segment = static_cast<std::uint32_t>(message.tag),
                 .message = 0};
  request.operation = message.operation;
  request.outgoing = message.outgoing;
  request.incoming = message.incoming;
  request.completions = &completions_;
  request.cookie = reinterpret_cast<std::uintptr_t>(pending.get());
  const bool waits = !pending->peer || (!message.sends && held_back(*pending));
  in_flight_.push_back(pending);
  engine_->submitted();  // From here on the message is sure to end.
  if (waits) {
    ++unposted_;
  } else {
    post(*pending);
    take_completions();  // Small messages have usually ended by now.
  }
  return pending;
}

void Mailbox::post(PendingMessage& message) {
  message.posted = true;
  message.request.peer = membership_->job_rank(*message.peer);
  if (message.sends) {
    engine_->transport().send(message.request);
  } else {
    engine_->transport().recv(message.request);
  }
}

// Whether an earlier receive with the same tag could take the message that `message` is to receive.
bool Mailbox::held_back(const PendingMessage& message) const {
  if (unposted_ == 0) return false;
  for (const auto& earlier : in_flight_) {
    if (earlier.get() == &message) return false;
    if (!earlier->sends && !earlier->posted && earlier->tag == message.tag) return true;
  }
  return false;
}

// Looks for an arrived message of any rank. Starts the search at another rank each time, so that a
// rank that sends without end does not keep the others waiting.
bool Mailbox::match(PendingMessage& message) {
  const auto ranks = static_cast<std::int32_t>(membership_->members.size());
  for (std::int32_t i = 1; i <= ranks; ++i) {
    const Rank rank = (last_matched_ + i) % ranks;
    if (rank == membership_->rank) continue;
    if (!engine_->transport().has_arrived(membership_->job_rank(rank), message.request.key)) {
      continue;
    }
    last_matched_ = rank.value();
    message.peer = rank;
    return true;
  }
  return false;
}

bool Mailbox::advance() {
  if (unposted_ == 0) return false;
  bool moved = false;
  for (const auto& message : in_flight_) {
    if (message->posted || message->done() || held_back(*message)) continue;
    if (!message->peer && !match(*message)) continue;
    --unposted_;
    post(*message);
    moved = true;
  }
  return moved;
}

// A failure is kept until the group has told all members: the caller of the failed message may
// destroy the group as soon as it sees the failure.
void Mailbox::take_completions() {
  for (; !completions_.empty(); completions_.pop()) {
    transport::Completion& completion = completions_.front();
    auto* message = reinterpret_cast<PendingMessage*>(completion.cookie);
    if (completion.status.ok()) {
      message->finish(Status());
    } else if (failed_ == nullptr) {
      failed_ = message;
      failure_ = std::move(completion.status);
    }
  }
}

std::shared_ptr<PendingMessage> Mailbox::retire() {
  take_completions();
  for (const auto& message : in_flight_) {
    if (message.get() == failed_) return message;
  }
  std::erase_if(in_flight_, [](const auto& message) { return message->done(); });
  return nullptr;
}

void Mailbox::fail(const Status& reason) {
  take_completions();
  for (const auto& message : in_flight_) message->finish(reason);
  in_flight_.clear();
  unposted_ = 0;
}

}  // namespace stretto::group

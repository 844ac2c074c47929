// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/group/pending.h"

namespace stretto::group {

// The point-to-point messages of a group.
//
// Messages with the same tag between the same two ranks have equal keys, and the transport keeps
// their order. A receive from any rank is posted only when a message has arrived. Until then it
// holds back the later receives of its tag, which must not overtake it (MPI 4.1, 3.5). Used under
// the engine's lock.
class Mailbox {
 public:
  struct Message {
    bool sends = false;
    Rank peer = 0;  // In the group; or kAnyRank.
    int tag = 0;
    OperationDescriptor operation;
    ConstByteSpan outgoing = {};
    ByteSpan incoming = {};
    Deadline deadline = {};
  };

  Mailbox(std::shared_ptr<Engine> engine, const execution::Membership& membership)
      : engine_(std::move(engine)), membership_(&membership) {}

  std::shared_ptr<PendingMessage> submit(const Message& message) STRETTO_REQUIRES(engine_held);
  // Matches receives from any rank with messages that have arrived, and posts receives that are no
  // longer held back. Returns whether it posted any.
  bool advance() STRETTO_REQUIRES(engine_held);
  // Removes messages that have ended. Returns the message whose request failed first, or null.
  std::shared_ptr<PendingMessage> retire() STRETTO_REQUIRES(engine_held);
  // Why the message that retire() returns has failed.
  const Status& failure() const STRETTO_REQUIRES(engine_held) { return failure_; }
  // Ends all messages with `reason`. The transport must have forgotten the group's requests.
  void fail(const Status& reason) STRETTO_REQUIRES(engine_held);

  // Messages in flight, the oldest first. Some may have ended since the last retire().
  const std::vector<std::shared_ptr<PendingMessage>>& in_flight() const
      STRETTO_REQUIRES(engine_held) {
    return in_flight_;
  }

 private:
  std::shared_ptr<PendingMessage> pooled() STRETTO_REQUIRES(engine_held);
  void take_completions() STRETTO_REQUIRES(engine_held);
  void post(PendingMessage& message) STRETTO_REQUIRES(engine_held);
  bool held_back(const PendingMessage& message) const STRETTO_REQUIRES(engine_held);
  bool match(PendingMessage& message) STRETTO_REQUIRES(engine_held);

  std::shared_ptr<Engine> engine_;
  const execution::Membership* membership_;
  std::vector<std::shared_ptr<PendingMessage>> in_flight_;
  transport::CompletionQueue completions_;  // Each cookie is the address of a PendingMessage.
  const PendingMessage* failed_ = nullptr;
  Status failure_;
  std::size_t unposted_ = 0;       // Receives not yet posted to the transport.
  std::int32_t last_matched_ = 0;  // The rank whose message a receive from any rank took last.
  // An entry is reused when nothing else refers to it.
  std::vector<std::shared_ptr<PendingMessage>> pool_;
};

}  // namespace stretto::group

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
// Messages of a pair of ranks and a tag have equal keys, among which the transport keeps the order.
// A receive from any rank is posted when a message has arrived; until then it holds back the later
// receives of its tag, which must not overtake it (MPI 4.1, 3.5).
// Everything here happens under the engine's lock.
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
  // Gives receives that wait for any rank the messages that have arrived. Returns whether it did.
  bool advance() STRETTO_REQUIRES(engine_held);
  // Takes out what has ended; returns the one whose request was the first to fail, or null.
  std::shared_ptr<PendingMessage> retire() STRETTO_REQUIRES(engine_held);
  // Why that one has failed.
  const Status& failure() const STRETTO_REQUIRES(engine_held) { return failure_; }
  // Ends everything. The transport must have forgotten the group's requests.
  void fail(const Status& reason) STRETTO_REQUIRES(engine_held);

  // Those that have not ended, the oldest first.
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
  transport::CompletionQueue completions_;  // A cookie is the address of a message in flight.
  const PendingMessage* failed_ = nullptr;
  Status failure_;
  std::size_t unposted_ = 0;       // Receives for which the transport has not been asked.
  std::int32_t last_matched_ = 0;  // The last rank whose message a receive from any rank took.
  std::vector<std::shared_ptr<PendingMessage>> pool_;  // Reused when nobody else holds them.
};

}  // namespace stretto::group

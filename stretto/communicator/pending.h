// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/communicator/engine.h"
#include "stretto/communicator/execution.h"
#include "stretto/communicator/packing.h"

namespace stretto::communicator {

// When others are asked where they are, so that their answers are here when time is up.
TimePoint time_to_ask(const Deadline& deadline);

// An operation between its submission and its end: what Work holds. Belongs to a group until it
// ends; Works may outlive the group.
class PendingOperation : public Operation {
 public:
  PendingOperation(std::shared_ptr<Engine> engine, std::uint64_t group)
      : engine_(std::move(engine)), group_(group) {}

  bool poll() override;
  Status wait(Deadline deadline) override;
  void then(Continuation continuation) override;
  void abandon() override;

  // With the engine's lock held.
  void begin(const OperationDescriptor& operation, std::uint32_t sequence, Deadline deadline);
  void finish(Status status);
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t sequence() const { return sequence_; }
  Deadline deadline() const { return deadline_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done.
  const Status& status() const { return status_; }
  // When the ranks that this operation waits for are to be asked what keeps them. Once.
  bool asks_at(TimePoint now);

 private:
  std::shared_ptr<Engine> engine_;
  std::uint64_t group_;
  OperationDescriptor operation_;
  std::uint32_t sequence_ = 0;
  Deadline deadline_;
  TimePoint ask_at_;
  std::vector<Continuation> continuations_;
  Status status_;  // Written before done_, read after it.
  std::atomic<bool> done_{false};
};

// A collective in a group's queue.
class PendingCollective : public PendingOperation {
 public:
  using PendingOperation::PendingOperation;
  Call call;
  std::optional<Packing> packing;
};

// A send or a receive.
class PendingMessage : public PendingOperation, public transport::RequestOwner {
 public:
  using PendingOperation::PendingOperation;
  std::optional<Rank> source() const override { return sends ? std::nullopt : peer; }

  transport::Request request;
  bool sends = false;
  int tag = 0;
  std::optional<Rank> peer;  // In the group. Nothing: any, and not known yet.
  bool posted = false;       // Whether the transport has it.

 private:
  void request_done(transport::Request& ended) override { finish(ended.status); }
};

// Several operations that one Work stands for.
class JoinedOperation : public Operation {
 public:
  explicit JoinedOperation(std::vector<std::shared_ptr<Operation>> parts)
      : parts_(std::move(parts)) {}

  bool poll() override;
  // The first failure, in the order of the parts.
  Status wait(Deadline deadline) override;
  void then(Continuation continuation) override;
  void abandon() override;

 private:
  std::vector<std::shared_ptr<Operation>> parts_;
};

}  // namespace stretto::communicator

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>

#include "stretto/communicator/engine.h"
#include "stretto/communicator/execution.h"

namespace stretto::communicator {

// An operation between its submission and its end: what Work holds. Belongs to a group until it
// ends; Works may outlive the group.
class PendingOperation : public Operation {
 public:
  explicit PendingOperation(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  bool poll() override;
  Status wait(Deadline deadline) override;

  // With the engine's lock held.
  void begin(const OperationDescriptor& operation, std::uint32_t sequence, Deadline deadline);
  void finish(Status status);
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t sequence() const { return sequence_; }
  Deadline deadline() const { return deadline_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done.
  const Status& status() const { return status_; }

 private:
  std::shared_ptr<Engine> engine_;
  OperationDescriptor operation_;
  std::uint32_t sequence_ = 0;
  Deadline deadline_;
  Status status_;  // Written before done_, read after it.
  std::atomic<bool> done_{false};
};

// A collective in a group's queue.
class PendingCollective : public PendingOperation {
 public:
  using PendingOperation::PendingOperation;
  Call call;
  Execution* execution = nullptr;  // Set while it runs.
};

// A send or a receive.
class PendingMessage : public PendingOperation, public transport::RequestOwner {
 public:
  using PendingOperation::PendingOperation;
  transport::Request request;
  Rank peer = 0;  // In the group.

 private:
  void request_done(transport::Request& ended) override { finish(ended.status); }
};

}  // namespace stretto::communicator

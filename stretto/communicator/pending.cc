// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/pending.h"

#include <fmt/format.h>

namespace stretto::communicator {

void PendingOperation::begin(const OperationDescriptor& operation, std::uint32_t sequence,
                             Deadline deadline) {
  operation_ = operation;
  sequence_ = sequence;
  deadline_ = deadline;
  status_ = Status();
  done_.store(false, std::memory_order_relaxed);
}

void PendingOperation::finish(Status status) {
  if (done()) return;
  status_ = std::move(status);
  engine_->ended();
  // Release: whoever sees the end sees the status, and the output that was written before.
  done_.store(true, std::memory_order_release);
}

bool PendingOperation::poll() {
  if (!done()) engine_->turn();
  return done();
}

Status PendingOperation::wait(Deadline deadline) {
  if (done() || engine_->drive([this] { return done(); }, deadline)) return status_;
  return status_of(StatusCode::timeout, "{} has not ended yet", describe(operation_));
}

}  // namespace stretto::communicator

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/operation.h"
#include "stretto/base/status.h"

namespace stretto {

// Called with the result of an operation that has ended.
using Continuation = std::function<void(const Status&)>;

// What an operation was, for its user's records.
struct OperationInfo {
  std::optional<Collective> collective = std::nullopt;  // Nothing: it has none.
  std::uint32_t number = 0;                             // See Work::number().
  Duration duration = {};                               // Valid once it has ended.
};

namespace group {
// The operation that a Work refers to; implemented by each kind of backend.
class Operation {
 public:
  virtual ~Operation() = default;
  // Whether the operation has ended, well or badly. Does not block; makes progress if it can.
  virtual bool poll() = 0;
  // Blocks until the operation has ended or `deadline` has passed. In the second case returns
  // timeout, and the operation goes on (its own deadline still holds).
  virtual Status wait(Deadline deadline) = 0;
  // See Work::wait_on_device().
  virtual Status wait_on_device() { return wait(Deadline()); }
  // Called when a Work is destroyed: the same as wait(), unless the operation has been waited for.
  virtual void end() { (void)wait(Deadline()); }
  // See Work::is_captured().
  virtual bool is_captured() const { return false; }
  // See Work::add_callback(). If it has ended already, what the continuation throws is logged.
  virtual void then(Continuation continuation) = 0;
  // If the operation has not ended yet, aborts it and its communicator on all ranks. When this
  // returns, the operation has ended, and its buffers belong to the caller again. Waits for other
  // ranks only while one copies from or to the buffers, for 2 s at most.
  virtual void abandon() = 0;
  // For a receive that has succeeded: the rank that sent the message.
  virtual std::optional<Rank> source() const { return std::nullopt; }
  virtual OperationInfo info() const { return {}; }
};
}  // namespace group

}  // namespace stretto

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

// Told how an operation has ended.
using Continuation = std::function<void(const Status&)>;

// What an operation was, for its user's records.
struct OperationInfo {
  std::optional<Collective> collective = std::nullopt;  // Nothing: none.
  std::uint32_t number = 0;                             // See Work::number().
  Duration duration = {};                               // Valid once it has ended.
};

namespace group {
// What a Work refers to: implemented by each kind of backend.
class Operation {
 public:
  virtual ~Operation() = default;
  // Whether the operation has ended, well or badly. Does not block; makes progress if it can.
  virtual bool poll() = 0;
  // Blocks until the operation has ended or `deadline` has passed; the latter is a timeout, after
  // which the operation goes on (its own deadline still holds).
  virtual Status wait(Deadline deadline) = 0;
  // See Work::wait_on_device().
  virtual Status wait_on_device() { return wait(Deadline()); }
  // When a Work is destroyed that refers to it: the same as wait(), unless it has been waited for.
  virtual void end() { (void)wait(Deadline()); }
  // See Work::is_captured().
  virtual bool is_captured() const { return false; }
  // See Work::add_callback(). Where it has ended already, what the continuation throws is logged.
  virtual void then(Continuation continuation) = 0;
  // Abandons the operation, and its communicator with it, on all ranks, if it has not ended by now.
  // Afterwards it has ended, and its buffers belong to the caller again. Waits for nobody.
  virtual void abandon() = 0;
  // Of a receive that has ended well: whose message it was.
  virtual std::optional<Rank> source() const { return std::nullopt; }
  virtual OperationInfo info() const { return {}; }
};
}  // namespace group

}  // namespace stretto

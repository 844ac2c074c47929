// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/turn.h"
#include "stretto/transport/transport.h"

namespace stretto::execution {

// What an execution has to know of its group.
struct Membership {
  std::uint64_t group = 0;
  Rank rank = 0;              // In the group.
  std::vector<Rank> members;  // members[i]: the rank in the job of the group's rank i.

  Rank job_rank(Rank in_group) const { return members[static_cast<std::size_t>(in_group)]; }
};

// The caller's side of one collective.
struct Call {
  OperationDescriptor operation;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint32_t sequence = 0;  // Of the group.
};

// One run of a plan. Reusable: start() after the last run has ended allocates nothing.
// Not thread safe; called by whoever holds the engine.
class Execution {
 public:
  virtual ~Execution() = default;
  virtual void start(const Call& call, Turn& turn) = 0;
  // Does what can be done now, within the turn. Returns whether anything was.
  virtual bool advance(Turn& turn) = 0;
  // Only takes note of the messages that have ended; returns whether there are any. What they allow
  // to go on goes on in advance().
  virtual bool take_completions() { return false; }
  // Whether the run has ended, well or badly.
  virtual bool ended() const = 0;
  virtual const Status& status() const = 0;
  // Ends a run that cannot go on. The transport must have forgotten the group's requests.
  virtual void fail(const Status& status) = 0;
  // Memory that it keeps while it is idle.
  virtual std::size_t idle_bytes() const { return 0; }
  // The members for which this rank waits, for messages about slow operations.
  virtual std::vector<Rank> waiting_for() const = 0;
};

}  // namespace stretto::execution

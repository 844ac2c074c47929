// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/operation.h"
#include "stretto/base/status.h"

namespace stretto {

// A communicator, as its observer sees it.
struct ObservedGroup {
  std::uint64_t serial = 0;  // No other communicator of this process has it.
  std::string id;            // The same on all ranks, and no other group of the job has it.
  std::string name;          // See GroupOptions::name. Empty: it has none.
  std::vector<Rank> ranks;   // Of the group, by their numbers in the job.
  Rank rank = 0;             // This rank's number in the group.
};

// A call of a communicator that was not refused.
struct ObservedOperation {
  std::shared_ptr<const ObservedGroup> group = nullptr;
  // One, or all of a list that one Work stands for; valid during the call. By the group's rules all
  // ranks have the same, but for messages. The algorithm is not known yet.
  std::span<const OperationDescriptor> parts = {};
  // How many collectives, and how many messages, of the group have been observed, with this one. So
  // ranks count alike if they begin to observe at the same point.
  std::uint64_t collective_number = 0;
  std::uint64_t message_number = 0;
  std::optional<Rank> message_to = std::nullopt;    // Of a send.
  std::optional<Rank> message_from = std::nullopt;  // Of a receive; kAnyRank: from any.
  std::optional<Duration> timeout = std::nullopt;   // Where it is not the communicator's.
  std::chrono::system_clock::time_point submitted = {};
};

// What a program is told of a communicator's operations, those that make groups included. Calls may
// come from any thread, at the same time, without a lock of stretto's. They should not block, must
// not call the communicator, and must take no lock that somebody may hold who asks a Work, waits
// for it or destroys it. What they throw is logged.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;

  // An operation has been submitted, by the calling thread, and may have ended. The result is
  // handed to ended(). Of a launch of a CUDA graph nothing is told, only of its capture.
  virtual std::uint64_t begun(const ObservedOperation& operation) = 0;
  // It has ended; once for each begun(), before Work::wait() returns and the program's callbacks
  // run. Messages of a batch end with the whole, and what a CUDA graph captures with its capture.
  virtual void ended(std::uint64_t id, const Status& how) = 0;
  // Communicator::abort() was called on this rank.
  virtual void aborted(const ObservedGroup& /*group*/, const std::string& /*reason*/) {}
};

}  // namespace stretto

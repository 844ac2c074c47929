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
  std::uint64_t serial = 0;  // Unique in this process.
  std::string id;            // The same on all ranks, and unique in the job.
  std::string name;          // See GroupOptions::name. Empty: no name.
  std::vector<Rank> ranks;   // The group's ranks, by their numbers in the job.
  Rank rank = 0;             // This rank's number in the group.
};

// A call of a communicator that was not rejected.
struct ObservedOperation {
  std::shared_ptr<const ObservedGroup> group = nullptr;
  // The operation, or all operations of a list that has one Work; valid during the call. By the
  // group's rules all ranks have the same, except for messages. The algorithm is not known yet.
  std::span<const OperationDescriptor> parts = {};
  // How many collectives and messages of the group have been observed, this one included. Ranks
  // count alike if they begin to observe at the same point.
  std::uint64_t collective_number = 0;
  std::uint64_t message_number = 0;
  std::optional<Rank> message_to = std::nullopt;    // For a send.
  std::optional<Rank> message_from = std::nullopt;  // For a receive; may be kAnyRank.
  std::optional<Duration> timeout = std::nullopt;   // If not the communicator's.
  std::chrono::system_clock::time_point submitted = {};
};

// Is told of a communicator's operations, including those that make groups. Calls may come from any
// thread, at the same time, with no lock of stretto held. They should not block and must not call
// the communicator. They must not take a lock that another thread may hold while it queries, waits
// for or destroys a Work. Exceptions that they throw are logged.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;

  // The calling thread has submitted an operation, which may have ended already. The result is
  // passed to ended(). Of a CUDA graph only the capture is reported, not its launches.
  virtual std::uint64_t begun(const ObservedOperation& operation) = 0;
  // The operation with this `id` has ended. Called once for each begun(), before Work::wait()
  // returns and the program's callbacks run. Messages of a batch end when the whole batch ends, and
  // operations that a CUDA graph captures end with their submission.
  virtual void ended(std::uint64_t id, const Status& how) = 0;
  // Communicator::abort() was called on this rank.
  virtual void aborted(const ObservedGroup& /*group*/, const std::string& /*reason*/) {}
};

}  // namespace stretto

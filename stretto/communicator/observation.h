// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/communicator/operation_observer.h"
#include "stretto/communicator/scheduled_backend.h"

namespace stretto::communicator {

// Tells an observer of the operations of a backend, which must outlive this. A communicator that
// nobody observes has none, so it pays nothing for it.
class Observation {
 public:
  // `earlier`: the observation by an earlier observer, who is also told; or null. If the
  // constructor throws, it has not been moved from.
  Observation(ScheduledBackend& backend, std::shared_ptr<OperationObserver> observer,
              std::unique_ptr<Observation>&& earlier);

  // Lets all observers observe a group that was made of this one, too.
  void extend_to(Communicator& group) const;

  // These call the backend's functions of the same name.
  Work submit(std::span<CollectiveCall> calls, const std::string& algorithm,
              const std::optional<Duration>& timeout);
  Work exchange(std::span<const Transfer> messages, const std::optional<Duration>& timeout);
  void abort(const std::string& reason);

 private:
  // Calls `submit`, and tells the observer of the operations. All of them end with the one Work.
  template <class Submit>
  Work tell_of(std::span<ObservedOperation> operations, const Submit& submit);
  std::vector<std::uint64_t> tell_begun(std::span<ObservedOperation> operations);

  ScheduledBackend& backend_;
  const std::shared_ptr<const ObservedGroup> group_;
  const std::shared_ptr<OperationObserver> observer_;
  const std::unique_ptr<Observation> earlier_;
  std::atomic<std::uint64_t> collectives_ = 0;
  std::atomic<std::uint64_t> messages_ = 0;
};

}  // namespace stretto::communicator

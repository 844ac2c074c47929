// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"

namespace stretto::c10d_backend {

class Driver;
class InFlight;

// The operations of one group that had not ended when they were submitted. Any thread.
class PendingWorks {
 public:
  // `driver`: the group's; it must outlive this.
  explicit PendingWorks(Driver& driver);
  ~PendingWorks();
  PendingWorks(const PendingWorks&) = delete;
  PendingWorks& operator=(const PendingWorks&) = delete;

  void add(const std::shared_ptr<InFlight>& operation, bool is_collective);
  // Returns the operations that may be in flight, in their order, or only the collectives among
  // them. Forgets all.
  std::vector<std::shared_ptr<InFlight>> take(bool only_collectives);
  // Collectives that are in flight. One whose Work is dropped lives until it has ended.
  std::vector<std::weak_ptr<InFlight>> list_collectives();
  // False in a child that has been forked since.
  bool is_here() const { return owner_process_.is_here(); }
  // To be called before waiting for an operation of a group (null: of a group that is still to be
  // made). Each group has an engine of its own, so a waiting thread moves only its own group's
  // operations along. The drivers of the process's other groups move theirs along, which other
  // ranks may need before they come to the operation that this rank waits for.
  static void drive_all_but(const PendingWorks* waited_for);
  // Counts the group's futures that have not ended: `change` is 1 for a new one, -1 for its end.
  // Nothing tells when a thread waits for a future, so while there are any, operations that other
  // groups begin are driven, too.
  void count_future(int change);

 private:
  struct Pending {
    std::weak_ptr<InFlight> operation;
    bool is_collective = false;
    bool is_driven = false;
  };
  void forget_ended(std::vector<std::shared_ptr<InFlight>>& looked_at) STRETTO_REQUIRES(mutex_);
  void drive(std::vector<std::shared_ptr<InFlight>>& looked_at);

  Driver& driver_;
  const OwnerProcess owner_process_;
  std::atomic<bool> has_any_ = false;  // Without the lock: whether there may be some.
  std::atomic<int> futures_ = 0;
  Mutex mutex_;
  std::vector<Pending> pending_ STRETTO_GUARDED_BY(mutex_);
  std::size_t limit_ STRETTO_GUARDED_BY(mutex_) = 0;  // Size at which ended ones are removed.
};

}  // namespace stretto::c10d_backend

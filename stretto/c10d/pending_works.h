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

// The operations of one group that had not ended when they had been submitted. Any thread.
class PendingWorks {
 public:
  // `driver`: of the group; lives as long.
  explicit PendingWorks(Driver& driver);
  ~PendingWorks();
  PendingWorks(const PendingWorks&) = delete;
  PendingWorks& operator=(const PendingWorks&) = delete;

  void add(const std::shared_ptr<InFlight>& operation, bool is_collective);
  // Those that may be in flight, which are forgotten here, in their order.
  std::vector<std::shared_ptr<InFlight>> take(bool only_collectives);
  // Collectives that are in flight. One whose Work is dropped lives until it has ended.
  std::vector<std::weak_ptr<InFlight>> list_collectives();
  // False in a child that has been forked since.
  bool is_here() const { return owner_process_.is_here(); }
  // To be called before a group (null: none that is there yet) is waited for. Each group has an
  // engine of its own, so who waits for an operation moves only those of its group along: the
  // drivers of the process's other groups do so with theirs, which other ranks may need before they
  // come to what this one waits for.
  static void drive_all_but(const PendingWorks* waited_for);
  // A future of this group has been made, or has ended. Whoever waits for one says so to nobody:
  // while there are some, what other groups begin is driven, too.
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
  std::size_t limit_ STRETTO_GUARDED_BY(mutex_) = 0;  // Beyond, those that have ended go.
};

}  // namespace stretto::c10d_backend

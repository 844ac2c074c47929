// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/pending_works.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "stretto/c10d/driver.h"
#include "stretto/c10d/work.h"

namespace stretto::c10d_backend {
namespace {

// All groups of this process. A forked child has none of its parent's, and a lock of its own.
struct AllPending {
  Mutex mutex;
  std::vector<PendingWorks*> groups STRETTO_GUARDED_BY(mutex);
  std::atomic<std::size_t> count = 0;
  std::atomic<int> futures = 0;  // Futures that have not ended.
  const OwnerProcess owner;
};

AllPending& all_pending() {
  // Outlives what other static objects do at the end.
  static std::atomic<AllPending*> all = new AllPending;
  AllPending* of_parent = all;
  if (of_parent->owner.is_here()) return *of_parent;
  // One of a child's threads replaces its parent's object; others use the new one.
  auto own = std::make_unique<AllPending>();
  return all.compare_exchange_strong(of_parent, own.get()) ? *own.release() : *of_parent;
}

}  // namespace

PendingWorks::PendingWorks(Driver& driver) : driver_(driver) {
  AllPending& all = all_pending();
  const MutexLock guard(all.mutex);
  all.groups.push_back(this);
  all.count = all.groups.size();
}

PendingWorks::~PendingWorks() {
  if (!owner_process_.is_here()) return;
  AllPending& all = all_pending();
  const MutexLock guard(all.mutex);
  std::erase(all.groups, this);
  all.count = all.groups.size();
  all.futures -= futures_;
}

void PendingWorks::add(const std::shared_ptr<InFlight>& operation, bool is_collective) {
  constexpr std::size_t kLeast = 32;                 // Spreads the cost of looking through them.
  std::vector<std::shared_ptr<InFlight>> looked_at;  // Freed without the lock: tensors may go.
  const MutexLock guard(mutex_);
  if (pending_.size() >= limit_) {
    forget_ended(looked_at);
    limit_ = std::max(kLeast, 2 * pending_.size());
  }
  pending_.push_back({operation, is_collective});
  has_any_ = true;
  if (!owner_process_.is_here() || all_pending().futures <= futures_) return;
  pending_.back().is_driven = true;
  driver_.drive(operation);
}

void PendingWorks::count_future(int change) {
  if (!owner_process_.is_here()) return;
  futures_ += change;
  all_pending().futures += change;
}

std::vector<std::shared_ptr<InFlight>> PendingWorks::take(bool only_collectives) {
  std::vector<Pending> pending;
  {
    const MutexLock guard(mutex_);
    pending.swap(pending_);
    has_any_ = false;
  }
  std::vector<std::shared_ptr<InFlight>> taken;
  for (const Pending& each : pending) {
    if (only_collectives && !each.is_collective) continue;
    if (auto alive = each.operation.lock()) taken.push_back(std::move(alive));
  }
  return taken;
}

std::vector<std::weak_ptr<InFlight>> PendingWorks::list_collectives() {
  std::vector<std::weak_ptr<InFlight>> listed;
  if (!owner_process_.is_here()) return listed;
  std::vector<std::shared_ptr<InFlight>> looked_at;  // Freed without the lock: tensors may go.
  const MutexLock guard(mutex_);
  for (const Pending& each : pending_) {
    if (!each.is_collective) continue;
    const auto& alive = looked_at.emplace_back(each.operation.lock());
    if (alive != nullptr && !alive->has_ended()) listed.push_back(alive);
  }
  return listed;
}

void PendingWorks::forget_ended(std::vector<std::shared_ptr<InFlight>>& looked_at) {
  std::erase_if(pending_, [&](const Pending& each) {
    const auto& alive = looked_at.emplace_back(each.operation.lock());
    return alive == nullptr || alive->has_ended();
  });
}

void PendingWorks::drive(std::vector<std::shared_ptr<InFlight>>& looked_at) {
  const MutexLock guard(mutex_);
  forget_ended(looked_at);
  has_any_ = !pending_.empty();
  for (Pending& each : pending_) {
    const auto& alive = looked_at.emplace_back(each.operation.lock());
    // A thread that waits for one operation moves all of its group along.
    if (alive == nullptr || each.is_driven || alive->is_waited_for()) continue;
    each.is_driven = true;
    driver_.drive(alive);
  }
}

void PendingWorks::drive_all_but(const PendingWorks* waited_for) {
  AllPending& all = all_pending();
  if (all.count <= (waited_for == nullptr ? 0U : 1U)) return;
  std::vector<std::shared_ptr<InFlight>> looked_at;  // Freed without the locks: tensors may go.
  const MutexLock guard(all.mutex);
  for (PendingWorks* const group : all.groups) {
    if (group != waited_for && group->has_any_) group->drive(looked_at);
  }
}

}  // namespace stretto::c10d_backend

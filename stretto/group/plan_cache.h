// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/execution/mapped_execution.h"
#include "stretto/execution/team_lanes.h"
#include "stretto/group/engine_held.h"
#include "stretto/group/planner.h"

namespace stretto::group {

// What the kinds of operations of one group need, kept from one call to the next: plans, and
// executions that are idle. Used under the engine's lock; the executions of a kind that runs alone
// belong to whoever owns the group's gate (fast_lane.h).
class PlanCache {
 public:
  // What idle executions keep, all together, unless one kind alone needs more.
  static constexpr std::size_t kIdleBytesMax = 64 * 1024 * 1024;
  // A kind that none of so many collectives has used is taken for one that is no longer needed.
  static constexpr std::uint64_t kForgottenAfter = 1024;

  // One kind. Stays where it is until shrink().
  struct Entry {
    std::string name;  // "all_reduce(sum f32 [4])".
    Plans plans;
    execution::Shares shares;
    // On the windows, whose counters are of one operation at a time: the only execution, whether it
    // is idle or not. Null: they run by messages.
    execution::MappedExecution* mapped = nullptr;
    std::vector<std::unique_ptr<execution::Execution>> idle;
    int in_use = 0;              // Operations that are queued or run.
    std::uint64_t last_use = 0;  // The number of its last take().

    bool runs_alone() const { return mapped != nullptr; }
  };

  // `membership` and `transport` must outlive it.
  PlanCache(const execution::Membership& membership, transport::Endpoint& transport,
            Planner::Setting setting);

  // Plans what is not in the cache yet: with the lock not held any more.
  std::shared_ptr<const Planner> planner() const STRETTO_REQUIRES(engine_held) { return planner_; }
  // Nothing is in flight. Those in the cache have to go, which shrink() does.
  void use_links(const LinkModel& links) STRETTO_REQUIRES(engine_held);
  void use_windows(execution::Windows windows) STRETTO_REQUIRES(engine_held);
  void use_library(std::shared_ptr<CollectiveLibrary> library) STRETTO_REQUIRES(engine_held);
  // If there is one for memory of devices: the group has failed.
  void abandon_device_library() STRETTO_REQUIRES(engine_held);
  void use_device(std::unique_ptr<execution::KernelQueue> queue, std::vector<std::int32_t> devices)
      STRETTO_REQUIRES(engine_held);
  // Whether all ranks are one team.
  bool is_one_team() const STRETTO_REQUIRES(engine_held) {
    return windows_ && windows_->is_whole_group();
  }
  // Whether ranks take the lines that they read of each other's windows.
  bool takes_lines() const STRETTO_REQUIRES(engine_held) {
    return windows_ && windows_->takes_lines;
  }

  // Null if there is none.
  Entry* find(const OperationDescriptor& operation,
              const std::optional<execution::SharesView>& shares) STRETTO_REQUIRES(engine_held);
  Entry& add(const OperationDescriptor& operation,
             const std::optional<execution::SharesView>& shares, Plans plans)
      STRETTO_REQUIRES(engine_held);
  // Whether shrink() is due before add().
  bool is_full() const STRETTO_REQUIRES(engine_held);
  // Forgets what is not in use.
  void shrink() STRETTO_REQUIRES(engine_held);

  // An execution for one run, which keep() takes back.
  std::unique_ptr<execution::Execution> take(Entry& entry) STRETTO_REQUIRES(engine_held);
  void keep(Entry& entry, std::unique_ptr<execution::Execution> execution)
      STRETTO_REQUIRES(engine_held);
  // Lets go of what other ranks have freed, in all that is idle. False: not everywhere.
  bool release_mappings() STRETTO_REQUIRES(engine_held);

 private:
  struct Key {
    OperationDescriptor operation;
    std::uint64_t shares = 0;  // A hash of the lists.
    bool operator<(const Key& other) const;
  };

  void replace_planner(Planner::Setting setting) STRETTO_REQUIRES(engine_held);
  std::unique_ptr<execution::Execution> make(const Entry& entry) STRETTO_REQUIRES(engine_held);
  void count_idle() STRETTO_REQUIRES(engine_held);
  Entry* least_needed_beside(const Entry& entry) STRETTO_REQUIRES(engine_held);

  const execution::Membership* membership_;
  transport::Endpoint* transport_;
  std::shared_ptr<const Planner> planner_ STRETTO_GUARDED_BY(engine_held);
  std::optional<execution::Windows> windows_ STRETTO_GUARDED_BY(engine_held);
  // In windows_, where those are not everybody's.
  std::optional<execution::TeamLanes> team_lanes_ STRETTO_GUARDED_BY(engine_held);
  execution::SharedLibrary library_ STRETTO_GUARDED_BY(engine_held);  // None: null.
  // Of what is in memory of the rank's device; null: none is.
  std::unique_ptr<execution::KernelQueue> device_ STRETTO_GUARDED_BY(engine_held);
  // Lists may differ although their hashes agree.
  std::multimap<Key, Entry> entries_ STRETTO_GUARDED_BY(engine_held);
  std::size_t idle_bytes_ STRETTO_GUARDED_BY(engine_held) = 0;
  std::uint64_t uses_ STRETTO_GUARDED_BY(engine_held) = 0;
};

}  // namespace stretto::group

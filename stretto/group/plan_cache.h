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

// Plans and idle executions of one group, kept from one call to the next, for each kind of
// operation. Used under the engine's lock. The execution of a kind that runs alone belongs to the
// owner of the group's gate (fast_lane.h).
class PlanCache {
 public:
  // Bytes that all idle executions together keep at most, unless one kind alone needs more.
  static constexpr std::size_t kIdleBytesMax = 64 * 1024 * 1024;
  // A kind counts as no longer needed if none of the last kForgottenAfter collectives used it.
  static constexpr std::uint64_t kForgottenAfter = 1024;

  // One kind. Its address is valid until shrink().
  struct Entry {
    std::string name;  // "all_reduce(sum f32 [4])".
    Plans plans;
    execution::Shares shares;
    // For a kind on mapped memory: its only execution, idle or not, because the windows' counters
    // serve one operation at a time. Null: the kind runs by messages.
    execution::MappedExecution* mapped = nullptr;
    std::vector<std::unique_ptr<execution::Execution>> idle;
    int in_use = 0;              // Operations that are queued or running.
    std::uint64_t last_use = 0;  // The count of take() calls at its last one.

    bool runs_alone() const { return mapped != nullptr; }
  };

  // `membership` and `transport` must outlive it.
  PlanCache(const execution::Membership& membership, transport::Endpoint& transport,
            Planner::Setting setting);

  // Plans kinds that are not in the cache, which needs no lock.
  std::shared_ptr<const Planner> planner() const STRETTO_REQUIRES(engine_held) { return planner_; }
  // Each of these replaces the planner. To be called while nothing is in flight. Plans in the cache
  // may be outdated then; shrink() removes them.
  void use_links(const LinkModel& links) STRETTO_REQUIRES(engine_held);
  void use_windows(execution::Windows windows) STRETTO_REQUIRES(engine_held);
  void use_library(std::shared_ptr<CollectiveLibrary> library) STRETTO_REQUIRES(engine_held);
  // Abandons the library for devices, if there is one, because the group has failed.
  void abandon_device_library() STRETTO_REQUIRES(engine_held);
  void use_device(std::unique_ptr<execution::KernelQueue> queue, std::vector<std::int32_t> devices)
      STRETTO_REQUIRES(engine_held);
  // Whether all ranks are one team.
  bool is_one_team() const STRETTO_REQUIRES(engine_held) {
    return windows_ && windows_->is_whole_group();
  }
  // Whether ranks take the cache lines that they read of each other's windows (take_lines()).
  bool takes_lines() const STRETTO_REQUIRES(engine_held) {
    return windows_ && windows_->takes_lines;
  }

  // Null if there is none.
  Entry* find(const OperationDescriptor& operation,
              const std::optional<execution::SharesView>& shares) STRETTO_REQUIRES(engine_held);
  Entry& add(const OperationDescriptor& operation,
             const std::optional<execution::SharesView>& shares, Plans plans)
      STRETTO_REQUIRES(engine_held);
  // Whether shrink() has to be called before add().
  bool is_full() const STRETTO_REQUIRES(engine_held);
  // Removes kinds that are not in use.
  void shrink() STRETTO_REQUIRES(engine_held);

  // An execution for one run. Return it with keep().
  std::unique_ptr<execution::Execution> take(Entry& entry) STRETTO_REQUIRES(engine_held);
  void keep(Entry& entry, std::unique_ptr<execution::Execution> execution)
      STRETTO_REQUIRES(engine_held);
  // Unmaps memory that other ranks have freed, in all idle executions. False: some still hold it.
  bool release_mappings() STRETTO_REQUIRES(engine_held);

 private:
  struct Key {
    OperationDescriptor operation;
    std::uint64_t shares = 0;  // A hash of the lists of shares.
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
  // The lanes in windows_, if those are not of all ranks.
  std::optional<execution::TeamLanes> team_lanes_ STRETTO_GUARDED_BY(engine_held);
  // Its library is null if there is none.
  execution::SharedLibrary library_ STRETTO_GUARDED_BY(engine_held);
  // Runs operations on memory of this rank's device; null: there is none.
  std::unique_ptr<execution::KernelQueue> device_ STRETTO_GUARDED_BY(engine_held);
  // A multimap, because different lists of shares may have equal hashes.
  std::multimap<Key, Entry> entries_ STRETTO_GUARDED_BY(engine_held);
  std::size_t idle_bytes_ STRETTO_GUARDED_BY(engine_held) = 0;
  std::uint64_t uses_ STRETTO_GUARDED_BY(engine_held) = 0;
};

}  // namespace stretto::group

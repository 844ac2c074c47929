// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/execution/team_lanes.h"
#include "stretto/execution/window.h"
#include "stretto/group/planner.h"

namespace stretto::group {

// What the kinds of operations of one group need, kept from one call to the next: plans, and
// executions that are idle. Used under the engine's lock; the executions of a kind that runs alone
// belong to whoever owns the group's gate (fast_lane.h).
class PlanCache {
 public:
  // One kind. Stays where it is until shrink().
  struct Entry {
    Plans plans;
    execution::Shares shares;
    // The first one stays; it is the only one where they run alone.
    std::vector<std::unique_ptr<execution::Execution>> idle;
    int in_use = 0;  // Operations that are queued or run.

    // On the windows, whose counters are of one operation at a time.
    bool runs_alone() const { return plans.messages == nullptr; }
  };

  // `membership` and `transport` must outlive it.
  PlanCache(const execution::Membership& membership, transport::Transport& transport,
            Planner::Setting setting);

  // Plans what is not in the cache yet. To be used without the lock.
  std::shared_ptr<const Planner> planner() const { return planner_; }
  // Nothing is in flight. Those in the cache have to go, which shrink() does.
  void use_links(const LinkModel& links);
  void use_windows(execution::Windows windows);
  void use_library(std::unique_ptr<CollectiveLibrary> library);
  // Whether all ranks are one team.
  bool is_one_team() const { return windows_ && windows_->is_whole_group(); }

  // Null if there is none.
  Entry* find(const OperationDescriptor& operation,
              const std::optional<execution::SharesView>& shares);
  Entry& add(const OperationDescriptor& operation,
             const std::optional<execution::SharesView>& shares, Plans plans);
  // Whether shrink() is due before add().
  bool is_full() const;
  // Forgets what is not in use.
  void shrink();

  // An execution for one run, which keep() takes back.
  std::unique_ptr<execution::Execution> take(Entry& entry);
  void keep(Entry& entry, std::unique_ptr<execution::Execution> execution);
  // Lets go of what other ranks have freed, in all that is idle. False: not everywhere.
  bool release_mappings();

 private:
  struct Key {
    OperationDescriptor operation;
    std::uint64_t shares = 0;  // A hash of the lists.
    bool operator<(const Key& other) const;
  };

  void replace_planner(Planner::Setting setting);
  std::unique_ptr<execution::Execution> make(const Entry& entry);
  void count_idle();

  const execution::Membership* membership_;
  transport::Transport* transport_;
  std::shared_ptr<const Planner> planner_;
  std::optional<execution::Windows> windows_;
  std::optional<execution::TeamLanes> team_lanes_;  // In windows_, where those are not everybody's.
  execution::SharedLibrary library_;                // None: null.
  std::multimap<Key, Entry> entries_;               // Lists may differ although their hashes agree.
  std::size_t idle_bytes_ = 0;
};

}  // namespace stretto::group

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stretto/schedule/dependencies.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// The schedules of all ranks, and the relations between their steps. print, verify and cost use it.
// It refers to the schedules, which must outlive it. One number identifies a step among all ranks;
// rank 0's steps come first. Memory grows with all steps of all ranks. So a running program, which
// verifies the schedules that no test has verified, does so only for few ranks (verify/proof.h).
class JointSchedule {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit JointSchedule(std::span<const Schedule> schedules);

  std::span<const Schedule> schedules() const { return schedules_; }
  std::size_t step_count() const { return rank_of_.size(); }
  // For one past the last rank: step_count().
  std::int32_t first_step(std::size_t rank) const { return first_step_[rank]; }
  std::size_t rank_of(std::size_t step) const { return static_cast<std::size_t>(rank_of_[step]); }
  const Schedule& schedule_of(std::size_t step) const { return schedules_[rank_of(step)]; }
  const Step& step(std::size_t step) const {
    return schedule_of(step).steps[step - first_step_[rank_of(step)]];
  }
  // The receive step of a send, or the send step of a receive; kNone if there is no such step.
  std::int32_t partner(std::size_t step) const { return partner_[step]; }
  std::int32_t predecessor_count(std::size_t step) const {
    return dependencies_[rank_of(step)].predecessor_count[step - first_step_[rank_of(step)]];
  }
  // The successors, as numbers of steps among all ranks.
  std::vector<std::int32_t> successors_of(std::size_t step) const;
  // "rank 1 step 2 (send raw 0 (c1) to 2)".
  std::string describe(std::size_t step) const;

 private:
  void match_messages();

  std::span<const Schedule> schedules_;
  std::vector<std::int32_t> first_step_;
  std::vector<std::int32_t> rank_of_;
  std::vector<std::int32_t> partner_;
  std::vector<Dependencies> dependencies_;
};

// One possible order of a run of all ranks.
struct JointRun {
  // The steps in an order in which they can end: a step comes after all steps it waits for, a send
  // directly before its receive, and a sync next to the syncs of the other ranks. Steps that can
  // never end are missing.
  std::vector<std::int32_t> order;
  // Per step, the number of messages and syncs on the longest path that leads to it.
  std::vector<std::int32_t> level;
  bool complete = false;
};

// Runs all ranks. Each step starts as soon as it may; a send or receive ends when both have
// started. `pick` gets the number of ready steps and returns the index of the one to start next.
// Without `pick`, the step that has been ready longest starts.
JointRun execute(const JointSchedule& joint,
                 const std::function<std::size_t(std::size_t ready)>& pick = {});

// "rank 0 step 1 (...) waits for rank 1 step 2 (...), which waits for ...": a cycle of steps, or a
// chain that ends with a step that waits for no other rank's step. `execution` must not be
// complete.
std::string explain_deadlock(const JointSchedule& joint, const JointRun& execution);

}  // namespace stretto::schedule

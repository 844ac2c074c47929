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

// The schedules of all ranks, with what follows from seeing them together. print, verify and cost
// build on it. It refers to the schedules: they must outlive it. A step is named by one number over
// all ranks, rank 0's steps first. Memory: all steps of all ranks, so a running program, which
// verifies what no test has, does that for few ranks (verify/proof.h).
class JointSchedule {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit JointSchedule(std::span<const Schedule> schedules);

  std::span<const Schedule> schedules() const { return schedules_; }
  std::size_t step_count() const { return rank_of_.size(); }
  // One past the last rank's gives step_count().
  std::int32_t first_step(std::size_t rank) const { return first_step_[rank]; }
  std::size_t rank_of(std::size_t step) const { return static_cast<std::size_t>(rank_of_[step]); }
  const Schedule& schedule_of(std::size_t step) const { return schedules_[rank_of(step)]; }
  const Step& step(std::size_t step) const {
    return schedule_of(step).steps[step - first_step_[rank_of(step)]];
  }
  // The receive of a send, the send of a receive; kNone where it has none.
  std::int32_t partner(std::size_t step) const { return partner_[step]; }
  std::int32_t predecessor_count(std::size_t step) const {
    return dependencies_[rank_of(step)].predecessor_count[step - first_step_[rank_of(step)]];
  }
  // They are numbers over all ranks.
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

// How a whole run can go.
struct JointRun {
  // Steps in an order in which they can end: a step after all it waits for, a send directly before
  // its receive, a sync together with the other ranks'. Steps that can never end are missing.
  std::vector<std::int32_t> order;
  // Per step, the messages or syncs on the longest path before it.
  std::vector<std::int32_t> level;
  bool complete = false;
};

// Runs all ranks, each step as soon as it may start; a send or receive ends when both have started.
// Of as many steps as are ready, `pick` says which one starts next; without it, the one that has
// been so for longest.
JointRun execute(const JointSchedule& joint,
                 const std::function<std::size_t(std::size_t ready)>& pick = {});

// "rank 0 step 1 (...) waits for rank 1 step 2 (...), which waits for ...": a circle of steps, or a
// chain to one that waits for nobody's step. Of an execution that is not complete.
std::string explain_deadlock(const JointSchedule& joint, const JointRun& execution);

}  // namespace stretto::schedule

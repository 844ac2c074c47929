// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "stretto/base/status.h"
#include "stretto/schedule/joint.h"
#include "stretto/schedule/schedule.h"
#include "stretto/schedule/verify/expression.h"

// The parts of verify(), in their order: each takes what has passed those before it.
namespace stretto::schedule {

// What all parts say of schedules that are wrong.
template <class... Args>
Status refusal(fmt::format_string<Args...> format, Args&&... args) {
  return status_of(StatusCode::invalid_argument, format, std::forward<Args>(args)...);
}

// Heads that disagree, steps of the wrong shape, places that do not exist or hold another kind of
// value, unequal numbers of syncs. There must be one schedule at least. Schedules that pass this
// and check_messages() can be executed symbolically without further checks of ranges.
Status check_structure(std::span<const Schedule> schedules);

// For mapped schedules: refuses a place that one rank writes and another touches with no sync
// between, in several runs of the list one after the other that take turns with the sets of
// scratch; and places in callers' buffers that another rank may touch before the caller has entered
// or after it has left.
Status check_races(std::span<const Schedule> schedules, std::int32_t scratch_sets = kScratchSets);

// Messages without a partner, or that leave from one kind of slot and land in another.
Status check_messages(const JointSchedule& joint);

// Executes symbolically and compares every output chunk of every rank with what the collective
// promises. The execution is complete.
Status check_results(const JointSchedule& joint, const JointRun& execution, bool in_place,
                     ExpressionPool& pool);

// No rank leaves a barrier before every rank has entered it. The execution is complete.
Status check_barrier(const JointSchedule& joint, const JointRun& execution);

}  // namespace stretto::schedule

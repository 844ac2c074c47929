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

// The parts of verify(), in the order of their calls. Each part relies on the checks of the parts
// before it.
namespace stretto::schedule {

// The status that all parts return for a wrong schedule.
template <class... Args>
Status refusal(fmt::format_string<Args...> format, Args&&... args) {
  return status_of(StatusCode::invalid_argument, format, std::forward<Args>(args)...);
}

// Refuses schedules whose heads disagree, steps of the wrong shape, places that do not exist or
// hold the wrong kind of value, and unequal numbers of syncs. `schedules` must not be empty.
// Schedules that pass this function and check_messages() can be executed symbolically without
// further checks of ranges.
Status check_structure(std::span<const Schedule> schedules);

// Checks mapped schedules. Refuses a place that one rank writes and another rank touches without a
// sync between the two; several consecutive runs of the list, which alternate between
// `scratch_sets` sets of scratch slots, are checked together. Also refuses places in callers'
// buffers that another rank may touch before the caller has entered or after it has left.
Status check_races(std::span<const Schedule> schedules, std::int32_t scratch_sets = kScratchSets);

// Refuses messages without a partner, and messages between slots of different kinds or chunks.
Status check_messages(const JointSchedule& joint);

// Executes the schedules symbolically, in the order of `execution`, and compares every output chunk
// of every rank with what the collective promises. `execution` must be complete.
Status check_results(const JointSchedule& joint, const JointRun& execution, bool in_place,
                     ExpressionPool& pool);

// Checks that no rank leaves a barrier before every rank has entered it. `execution` must be
// complete.
Status check_barrier(const JointSchedule& joint, const JointRun& execution);

}  // namespace stretto::schedule

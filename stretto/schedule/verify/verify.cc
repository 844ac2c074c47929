// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/verify.h"

#include <vector>

#include <fmt/core.h>

#include "stretto/schedule/verify/parts.h"

namespace stretto::schedule {
namespace {

Status check(std::span<const Schedule> schedules) {
  STRETTO_RETURN_IF_ERROR(check_structure(schedules));
  STRETTO_RETURN_IF_ERROR(check_races(schedules));
  const JointSchedule joint(schedules);
  STRETTO_RETURN_IF_ERROR(check_messages(joint));
  const JointRun execution = execute(joint);
  if (!execution.complete) {
    return {StatusCode::invalid_argument, "deadlock: " + explain_deadlock(joint, execution)};
  }
  if (schedules.front().collective == Collective::barrier) return check_barrier(joint, execution);
  ExpressionPool pool;
  STRETTO_RETURN_IF_ERROR(check_results(joint, execution, /*in_place=*/false, pool));
  if (schedules.front().collective == Collective::all_to_all) return {};
  const Status in_place = check_results(joint, execution, /*in_place=*/true, pool);
  return in_place.ok() ? Status() : in_place.with_context("in place");
}

}  // namespace

Status verify(std::span<const Schedule> schedules) {
  if (schedules.empty()) return {StatusCode::invalid_argument, "no schedules"};
  const Schedule& first = schedules.front();
  const Status status = check(schedules);
  if (status.ok()) return {};
  return status.with_context(fmt::format("{} by {} on {} rank{}", name(first.collective),
                                         first.algorithm, schedules.size(),
                                         schedules.size() == 1 ? "" : "s"));
}

}  // namespace stretto::schedule

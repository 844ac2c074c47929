// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/verify/verify.h"
#include "tests/support/expect_contains.h"

// Schedules to be broken, for tests of what verify() refuses.
namespace stretto::schedule {

using Schedules = std::vector<Schedule>;

// Builds and verifies the schedules of the algorithm `name`, over messages or on mapped memory.
inline Schedules build(Collective collective, std::string_view name, int n, Rank root = 0) {
  const Algorithm* algorithm = find_algorithm(collective, Access::messages, name);
  if (algorithm == nullptr) algorithm = find_algorithm(collective, Access::mapped, name);
  if (algorithm == nullptr) return {};
  Schedules schedules = algorithm->build_all(n, root);
  EXPECT_TRUE(verify(schedules).ok()) << verify(schedules).message();
  return schedules;
}

// The `n`-th step of a kind in a schedule, from 0.
inline Step& nth(Schedule& schedule, StepKind kind, int n = 0) {
  for (Step& step : schedule.steps) {
    if (step.kind == kind && n-- == 0) return step;
  }
  ADD_FAILURE() << "there is no such step";
  return schedule.steps.front();
}

inline void erase_nth(Schedule& schedule, StepKind kind, int n = 0) {
  schedule.steps.erase(schedule.steps.begin() + (&nth(schedule, kind, n) - &schedule.steps[0]));
}

inline void expect_refused_because(const Schedules& schedules, const std::string& part_of_reason) {
  const Status status = verify(schedules);
  expect_failure(status, StatusCode::invalid_argument, part_of_reason);
}

}  // namespace stretto::schedule

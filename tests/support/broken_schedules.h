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

// Expects that verify() refuses the schedules without any one of their steps.
inline void expect_every_step_is_needed(const Schedules& schedules, std::string_view name) {
  ASSERT_TRUE(verify(schedules).ok());
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::size_t step = 0; step < schedules[rank].steps.size(); ++step) {
      Schedules broken = schedules;
      broken[rank].steps.erase(broken[rank].steps.begin() + static_cast<std::ptrdiff_t>(step));
      EXPECT_FALSE(verify(broken).ok())
          << name << " of " << schedules.size() << " ranks, rank " << rank << " step " << step;
    }
  }
}

inline void expect_refused_because(const Schedules& schedules, const std::string& part_of_reason) {
  const Status status = verify(schedules);
  expect_failure(status, StatusCode::invalid_argument, part_of_reason);
}

}  // namespace stretto::schedule

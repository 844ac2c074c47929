// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <utility>

#include <fmt/core.h>

#include "stretto/base/status.h"
#include "stretto/schedule/joint.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Parts of verify(): what can be wrong with schedules before anything runs. Schedules that pass
// both can be executed symbolically without further checks of ranges.

// What all parts say of schedules that are wrong.
template <class... Args>
Status refusal(fmt::format_string<Args...> format, Args&&... args) {
  return status_of(StatusCode::invalid_argument, format, std::forward<Args>(args)...);
}

// Heads that disagree, steps of the wrong shape, places that do not exist or hold another kind of
// value, unequal numbers of syncs. There must be one schedule at least.
Status check_structure(std::span<const Schedule> schedules);

// Messages without a partner, or that leave from one kind of slot and land in another. The
// schedules have passed check_structure().
Status check_messages(const JointSchedule& joint);

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// The schedule as text for a reviewer of a diff: a head line, then one line per step. The format is
// stable: parts_test.cc compares it.
std::string print(const Schedule& schedule);

// One step: "send input c3 to 1".
std::string print(const Schedule& schedule, const Step& step);

// The schedules of all ranks side by side, one line per level of messages or per mapped step. For
// docs and `stretto plan`.
std::string print(std::span<const Schedule> schedules);

}  // namespace stretto::schedule

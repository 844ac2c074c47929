// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// The schedule as text that a reviewer reads in a diff: a head line, then a line per step. Stable:
// parts_test.cc compares it.
std::string print(const Schedule& schedule);

// One step: "send input c3 to 1".
std::string print(const Schedule& schedule, const Step& step);

// All ranks side by side, a line per message or mapped step, for docs and `stretto plan`.
std::string print(std::span<const Schedule> schedules);

}  // namespace stretto::schedule

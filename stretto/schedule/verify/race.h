// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>

#include "stretto/base/status.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// A part of verify() for mapped schedules that have passed check_structure(): refuses a place that
// one rank writes and another touches with no sync between, in several runs of the list one after
// the other that take turns with the sets of scratch; and places in callers' buffers that another
// rank may touch before the caller has entered or after it has left.
Status check_races(std::span<const Schedule> schedules, std::int32_t scratch_sets = kScratchSets);

}  // namespace stretto::schedule

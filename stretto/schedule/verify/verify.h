// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>

#include "stretto/base/status.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Proves by symbolic execution that the ranks' schedules together are the collective they claim to
// be, for this number of ranks: every output chunk holds what it must, each contribution exactly
// once and combined in the stated order; means divided once; slots of the right kind; all messages
// matched; no deadlock, even if a send ends only when its receive has begun; in mapped schedules,
// no place that one rank writes and another touches between the same two syncs; inputs untouched
// out of place; in place right as well. `schedules[r]` is rank r's.
//
// Fails (invalid_argument) with the first reason found, in words: "all_reduce by ring on 4 ranks:
// output chunk 2 on rank 1 lacks rank 3".
Status verify(std::span<const Schedule> schedules);

}  // namespace stretto::schedule

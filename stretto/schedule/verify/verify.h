// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>

#include "stretto/base/status.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Proves by symbolic execution that the schedules of all ranks together are the collective they
// claim to be, for this number of ranks. `schedules[r]` is that of rank r. It checks that:
//   - every output chunk holds each contribution exactly once, combined in the stated order, and a
//     mean is divided once;
//   - every value lies in a slot of the right kind;
//   - all messages match, and no deadlock occurs even if a send ends only when its receive begins;
//   - in mapped schedules, no place is written by one rank and touched by another between the same
//     two syncs;
//   - out of place the input stays untouched, and the result is right in place as well.
//
// Fails (invalid_argument) with the first error found, in words: "all_reduce by ring on 4 ranks:
// output chunk 2 on rank 1 lacks rank 3".
Status verify(std::span<const Schedule> schedules);

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// The difference between the Clock of a rank's host and that of rank 0.
struct ClockOffset {
  Duration offset{};       // Add it to a time of the rank to get that of rank 0.
  Duration uncertainty{};  // The largest possible error of `offset`.
};

// Returns the offsets of all ranks, by rank; the same on all ranks. Collective; blocks for some
// tens of barriers. The uncertainty is a proven bound, not an estimate: no rank leaves a barrier
// before every other rank has entered it. Clocks drift, by some milliseconds in an hour where hosts
// do not correct them. Throws what operations throw.
std::vector<ClockOffset> measure_clock_offsets(
    Communicator& comm, const std::optional<Duration>& timeout = std::nullopt);

}  // namespace stretto

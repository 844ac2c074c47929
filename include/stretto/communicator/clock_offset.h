// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// How the Clock of a rank's host stands to that of rank 0.
struct ClockOffset {
  Duration offset{};       // Added to a time of the rank: the time of rank 0 at that moment.
  Duration uncertainty{};  // The true offset differs by no more.
};

// Of all ranks, by rank; the same on all. Collective; blocks for some tens of barriers. Bounds are
// proved, not estimated: no rank leaves a barrier before every other one has entered it. Clocks
// drift, by some milliseconds in an hour where hosts do not correct them. Throws what operations
// throw.
std::vector<ClockOffset> measure_clock_offsets(
    Communicator& comm, const std::optional<Duration>& timeout = std::nullopt);

}  // namespace stretto

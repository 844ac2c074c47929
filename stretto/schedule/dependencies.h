// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Says which steps of a schedule wait for which earlier steps: a step may start once all its
// predecessors have ended. Only direct dependencies are listed; the others follow from them.
struct Dependencies {
  std::vector<std::int32_t> successors_begin;  // Of step i: [successors_begin[i], [i + 1]).
  std::vector<std::int32_t> successors;
  std::vector<std::int32_t> predecessor_count;

  std::span<const std::int32_t> successors_of(std::size_t step) const {
    return std::span(successors)
        .subspan(successors_begin[step], successors_begin[step + 1] - successors_begin[step]);
  }
};

// Derives the dependencies from slots, signals and syncs, as the "Meaning" paragraph of Schedule
// defines them. Input chunk c and output chunk c are assumed to be the same bytes, which is safe
// for operations out of place as well. Takes O(places log places) time. The schedule must have
// passed verify(), or at least have valid ranges of places.
Dependencies dependencies(const Schedule& schedule);

}  // namespace stretto::schedule

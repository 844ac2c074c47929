// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Which steps of a schedule wait for which earlier ones: a step may start once all its predecessors
// have ended. Only direct hazards are listed; the rest follow from them.
struct Dependencies {
  std::vector<std::int32_t> successors_begin;  // Of step i: [successors_begin[i], [i + 1]).
  std::vector<std::int32_t> successors;
  std::vector<std::int32_t> predecessor_count;

  std::span<const std::int32_t> successors_of(std::size_t step) const {
    return std::span(successors)
        .subspan(successors_begin[step], successors_begin[step + 1] - successors_begin[step]);
  }
};

// Derives them as Schedule's "Meaning" says: from slots, taking input and output chunks to be the
// same bytes, which is right for operations out of place and in place; from signals; from syncs.
// O(places log places) time. The schedule must have passed verify(), or have sound ranges of
// places.
Dependencies dependencies(const Schedule& schedule);

}  // namespace stretto::schedule

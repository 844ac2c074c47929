// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// The schedule of the shape's rank where ranks share processors: `processors` has a number for
// each rank, the same for those that share one. The first rank of a processor does the steps of all
// its ranks between two syncs, and the others only meet it: of kernels of several processes a GPU
// runs one after the other, and takes longer to change to the next than to reduce megabytes. Of
// algorithms on mapped memory without scratch slots, which begin with a sync.
Schedule build_for_processors(const Algorithm& algorithm, const Shape& shape,
                              std::span<const std::int32_t> processors);

}  // namespace stretto::schedule

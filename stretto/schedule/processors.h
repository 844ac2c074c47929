// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// The schedule of the shape's rank where ranks share processors. `processors` has one number per
// rank; ranks with the same number share a processor. The first rank of a processor does the steps
// of all its ranks between two syncs, and the other ranks only take part in the syncs. The reason:
// a GPU runs kernels of several processes one after the other, and changing to another process
// takes longer than reducing megabytes.
//
// Only for algorithms on mapped memory that use no scratch slots and begin with a sync.
Schedule build_for_processors(const Algorithm& algorithm, const Shape& shape,
                              std::span<const std::int32_t> processors);

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and staged_mapped.cc.
Schedule staged_mapped_all_reduce(const Shape& shape);
Schedule staged_mapped_reduce_scatter(const Shape& shape);
Schedule staged_mapped_all_gather(const Shape& shape);
Schedule staged_mapped_broadcast(const Shape& shape);
Schedule staged_mapped_reduce(const Shape& shape);
Schedule staged_mapped_gather(const Shape& shape);
Schedule staged_mapped_scatter(const Shape& shape);
Schedule staged_mapped_all_to_all(const Shape& shape);

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md, two_level.cc and
// two_level_broadcast.cc.
Schedule two_level_all_reduce(const Shape& shape);
Schedule two_level_reduce_scatter(const Shape& shape);
Schedule two_level_all_gather(const Shape& shape);
Schedule two_level_broadcast(const Shape& shape);

}  // namespace stretto::schedule

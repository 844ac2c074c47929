// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and ring.cc.
Schedule ring_all_reduce(const Shape& shape);
Schedule ring_reduce_scatter(const Shape& shape);
Schedule ring_all_gather(const Shape& shape);

}  // namespace stretto::schedule

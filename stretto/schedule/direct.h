// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and direct.cc.
Schedule direct_all_reduce(const Shape& shape);
Schedule direct_reduce_scatter(const Shape& shape);
Schedule direct_all_gather(const Shape& shape);
Schedule direct_broadcast(const Shape& shape);
Schedule direct_reduce(const Shape& shape);
Schedule direct_gather(const Shape& shape);
Schedule direct_scatter(const Shape& shape);
Schedule direct_barrier(const Shape& shape);

}  // namespace stretto::schedule

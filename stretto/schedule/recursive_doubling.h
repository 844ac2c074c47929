// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and
// recursive_doubling.cc.
Schedule recursive_doubling_all_reduce(const Shape& shape);
Schedule recursive_doubling_all_gather(const Shape& shape);
Schedule recursive_doubling_barrier(const Shape& shape);

}  // namespace stretto::schedule

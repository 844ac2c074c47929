// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and recursive_halving.cc.
Schedule recursive_halving_all_reduce(const Shape& shape);
Schedule recursive_halving_reduce_scatter(const Shape& shape);

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and binomial_tree.cc.
Schedule binomial_tree_all_reduce(const Shape& shape);
Schedule binomial_tree_broadcast(const Shape& shape);
Schedule binomial_tree_reduce(const Shape& shape);
Schedule binomial_tree_gather(const Shape& shape);
Schedule binomial_tree_scatter(const Shape& shape);
Schedule binomial_tree_barrier(const Shape& shape);

}  // namespace stretto::schedule

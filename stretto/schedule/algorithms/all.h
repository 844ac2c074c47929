// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

// One function for each algorithm and collective. Each is described where it is defined, in the file
// of the algorithm's name.
namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and binomial_tree.cc.
Schedule binomial_tree_all_reduce(const Shape& shape);
Schedule binomial_tree_broadcast(const Shape& shape);
Schedule binomial_tree_reduce(const Shape& shape);
Schedule binomial_tree_gather(const Shape& shape);
Schedule binomial_tree_scatter(const Shape& shape);
Schedule binomial_tree_barrier(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and bruck.cc.
Schedule bruck_all_gather(const Shape& shape);
Schedule bruck_all_to_all(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and direct.cc.
Schedule direct_all_reduce(const Shape& shape);
Schedule direct_reduce_scatter(const Shape& shape);
Schedule direct_all_gather(const Shape& shape);
Schedule direct_broadcast(const Shape& shape);
Schedule direct_reduce(const Shape& shape);
Schedule direct_gather(const Shape& shape);
Schedule direct_scatter(const Shape& shape);
Schedule direct_barrier(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and direct_mapped.cc.
Schedule direct_mapped_all_reduce(const Shape& shape);
Schedule direct_mapped_reduce_scatter(const Shape& shape);
Schedule direct_mapped_all_gather(const Shape& shape);
Schedule direct_mapped_broadcast(const Shape& shape);
Schedule direct_mapped_reduce(const Shape& shape);
Schedule direct_mapped_gather(const Shape& shape);
Schedule direct_mapped_scatter(const Shape& shape);
Schedule direct_mapped_all_to_all(const Shape& shape);
Schedule direct_mapped_barrier(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and
// double_binary_tree.cc.
Schedule double_binary_tree_all_reduce(const Shape& shape);
Schedule double_binary_tree_reduce(const Shape& shape);
Schedule double_binary_tree_broadcast(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and eager_mapped.cc.
Schedule eager_mapped_all_reduce(const Shape& shape);
Schedule eager_mapped_reduce(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and knomial.cc.
Schedule knomial_reduce(const Shape& shape);
Schedule knomial_broadcast(const Shape& shape);

// What it does, what it costs and when to choose it: docs/algorithms.md and pairwise.cc.
Schedule pairwise_all_to_all(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and
// recursive_doubling.cc.
Schedule recursive_doubling_all_reduce(const Shape& shape);
Schedule recursive_doubling_all_gather(const Shape& shape);
Schedule recursive_doubling_barrier(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and recursive_halving.cc.
Schedule recursive_halving_all_reduce(const Shape& shape);
Schedule recursive_halving_reduce_scatter(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and ring.cc.
Schedule ring_all_reduce(const Shape& shape);
Schedule ring_reduce_scatter(const Shape& shape);
Schedule ring_all_gather(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md and staged_mapped.cc.
Schedule staged_mapped_all_reduce(const Shape& shape);
Schedule staged_mapped_reduce_scatter(const Shape& shape);
Schedule staged_mapped_all_gather(const Shape& shape);
Schedule staged_mapped_broadcast(const Shape& shape);
Schedule staged_mapped_reduce(const Shape& shape);
Schedule staged_mapped_gather(const Shape& shape);
Schedule staged_mapped_scatter(const Shape& shape);
Schedule staged_mapped_all_to_all(const Shape& shape);

// What it does, what it costs and when not to choose it: docs/algorithms.md and textbook_ring.cc.
Schedule textbook_ring_all_reduce(const Shape& shape);

// What each does, what it costs and when to choose it: docs/algorithms.md, two_level.cc and
// two_level_broadcast.cc.
Schedule two_level_all_reduce(const Shape& shape);
Schedule two_level_reduce_scatter(const Shape& shape);
Schedule two_level_all_gather(const Shape& shape);
Schedule two_level_broadcast(const Shape& shape);

}  // namespace stretto::schedule

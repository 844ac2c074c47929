// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

// One function for each algorithm and collective. What it does, what it costs and when to choose it
// is said where it is defined, in the file of the algorithm's name, and in docs/algorithms.md.
namespace stretto::schedule {

Schedule binomial_tree_all_reduce(const Shape& shape);
Schedule binomial_tree_broadcast(const Shape& shape);
Schedule binomial_tree_reduce(const Shape& shape);
Schedule binomial_tree_gather(const Shape& shape);
Schedule binomial_tree_scatter(const Shape& shape);
Schedule binomial_tree_barrier(const Shape& shape);

Schedule bruck_all_gather(const Shape& shape);
Schedule bruck_all_to_all(const Shape& shape);

Schedule direct_all_reduce(const Shape& shape);
Schedule direct_reduce_scatter(const Shape& shape);
Schedule direct_all_gather(const Shape& shape);
Schedule direct_broadcast(const Shape& shape);
Schedule direct_reduce(const Shape& shape);
Schedule direct_gather(const Shape& shape);
Schedule direct_scatter(const Shape& shape);
Schedule direct_barrier(const Shape& shape);

Schedule direct_mapped_all_reduce(const Shape& shape);
Schedule direct_mapped_reduce_scatter(const Shape& shape);
Schedule direct_mapped_all_gather(const Shape& shape);
Schedule direct_mapped_broadcast(const Shape& shape);
Schedule direct_mapped_reduce(const Shape& shape);
Schedule direct_mapped_gather(const Shape& shape);
Schedule direct_mapped_scatter(const Shape& shape);
Schedule direct_mapped_all_to_all(const Shape& shape);
Schedule direct_mapped_barrier(const Shape& shape);

Schedule double_binary_tree_all_reduce(const Shape& shape);
Schedule double_binary_tree_reduce(const Shape& shape);
Schedule double_binary_tree_broadcast(const Shape& shape);

Schedule eager_mapped_all_reduce(const Shape& shape);
Schedule eager_mapped_reduce(const Shape& shape);

Schedule knomial_reduce(const Shape& shape);
Schedule knomial_broadcast(const Shape& shape);

Schedule pairwise_all_to_all(const Shape& shape);

Schedule recursive_doubling_all_reduce(const Shape& shape);
Schedule recursive_doubling_all_gather(const Shape& shape);
Schedule recursive_doubling_barrier(const Shape& shape);

Schedule recursive_halving_all_reduce(const Shape& shape);
Schedule recursive_halving_reduce_scatter(const Shape& shape);

Schedule ring_all_reduce(const Shape& shape);
Schedule ring_reduce_scatter(const Shape& shape);
Schedule ring_all_gather(const Shape& shape);

Schedule staged_mapped_all_reduce(const Shape& shape);
Schedule staged_mapped_reduce_scatter(const Shape& shape);
Schedule staged_mapped_all_gather(const Shape& shape);
Schedule staged_mapped_broadcast(const Shape& shape);
Schedule staged_mapped_reduce(const Shape& shape);
Schedule staged_mapped_gather(const Shape& shape);
Schedule staged_mapped_scatter(const Shape& shape);
Schedule staged_mapped_all_to_all(const Shape& shape);

Schedule textbook_ring_all_reduce(const Shape& shape);

Schedule two_level_all_reduce(const Shape& shape);
Schedule two_level_reduce_scatter(const Shape& shape);
Schedule two_level_all_gather(const Shape& shape);
Schedule two_level_broadcast(const Shape& shape);

Schedule two_level_mapped_all_reduce(const Shape& shape);
Schedule two_level_mapped_reduce_scatter(const Shape& shape);
Schedule two_level_mapped_all_gather(const Shape& shape);
Schedule two_level_mapped_broadcast(const Shape& shape);
Schedule two_level_mapped_reduce(const Shape& shape);
Schedule two_level_mapped_gather(const Shape& shape);
Schedule two_level_mapped_scatter(const Shape& shape);
Schedule two_level_mapped_barrier(const Shape& shape);

}  // namespace stretto::schedule

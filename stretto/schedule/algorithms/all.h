// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

// One function for each algorithm and collective. docs/internals/algorithms.md has a drawing of
// each algorithm, its cost, when to choose it and its source.
namespace stretto::schedule {

AddSteps binomial_tree_all_reduce, binomial_tree_broadcast, binomial_tree_reduce,
    binomial_tree_gather, binomial_tree_scatter, binomial_tree_barrier;
AddSteps bruck_all_to_all;
AddSteps direct_all_reduce, direct_reduce_scatter, direct_all_gather, direct_broadcast,
    direct_reduce, direct_gather, direct_scatter, direct_barrier;
AddSteps direct_mapped_all_reduce, direct_mapped_reduce_scatter, direct_mapped_all_gather,
    direct_mapped_broadcast, direct_mapped_reduce, direct_mapped_gather, direct_mapped_scatter,
    direct_mapped_all_to_all, direct_mapped_barrier;
AddSteps double_binary_tree_broadcast;
AddSteps eager_mapped_all_reduce, eager_mapped_reduce;
AddSteps knomial_reduce, knomial_broadcast;
AddSteps pairwise_all_to_all;
AddSteps recursive_doubling_all_reduce, recursive_doubling_all_gather, recursive_doubling_barrier;
AddSteps recursive_halving_all_reduce, recursive_halving_reduce_scatter;
AddSteps ring_all_reduce, ring_reduce_scatter, ring_all_gather;
AddSteps staged_mapped_all_reduce, staged_mapped_reduce_scatter, staged_mapped_all_gather,
    staged_mapped_broadcast, staged_mapped_reduce, staged_mapped_gather, staged_mapped_scatter,
    staged_mapped_all_to_all;
AddSteps two_level_all_reduce, two_level_reduce_scatter, two_level_all_gather, two_level_broadcast;
AddSteps two_level_mapped_all_reduce, two_level_mapped_reduce_scatter, two_level_mapped_all_gather,
    two_level_mapped_broadcast, two_level_mapped_reduce, two_level_mapped_gather,
    two_level_mapped_scatter, two_level_mapped_all_to_all, two_level_mapped_barrier,
    two_level_eager_all_reduce;

// The closed form of each function above, under the same name. Algorithms on mapped memory alone
// have none.
namespace time_of {

ClosedForm binomial_tree_all_reduce, binomial_tree_broadcast, binomial_tree_reduce,
    binomial_tree_gather, binomial_tree_scatter, binomial_tree_barrier;
ClosedForm bruck_all_to_all;
ClosedForm direct_all_reduce, direct_reduce_scatter, direct_all_gather, direct_broadcast,
    direct_reduce, direct_gather, direct_scatter, direct_barrier;
ClosedForm double_binary_tree_broadcast;
ClosedForm knomial_reduce, knomial_broadcast;
ClosedForm pairwise_all_to_all;
ClosedForm recursive_doubling_all_reduce, recursive_doubling_all_gather, recursive_doubling_barrier;
ClosedForm recursive_halving_all_reduce, recursive_halving_reduce_scatter;
ClosedForm ring_all_reduce, ring_reduce_scatter, ring_all_gather;
ClosedForm two_level_all_reduce, two_level_reduce_scatter, two_level_all_gather,
    two_level_broadcast;
ClosedForm two_level_mapped_all_reduce, two_level_mapped_reduce_scatter,
    two_level_mapped_all_gather, two_level_mapped_broadcast, two_level_mapped_reduce,
    two_level_mapped_gather, two_level_mapped_scatter, two_level_mapped_all_to_all,
    two_level_mapped_barrier, two_level_eager_all_reduce;

}  // namespace time_of

}  // namespace stretto::schedule

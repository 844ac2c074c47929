// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include "stretto/schedule/algorithms/tree_walk.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

constexpr std::int32_t kLevels = 2;  // Of the canonical tree, in one step: radix 4.

}  // namespace

// k-nomial reduce: up to four subtrees of the canonical tree meet in one step.
//
//   n = 16, root 0:   1, 2, 3 --> 0   5, 6, 7 --> 4   9, 10, 11 --> 8   13, 14, 15 --> 12
//                     4, 8, 12 --> 0
void knomial_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  climb_tree(schedule, shape, kLevels);
}

// k-nomial broadcast: whoever has the buffer hands it to three that have not.
//
//   n = 16, root 0:   0 --> 4, 8, 12
//                     0 --> 1, 2, 3   4 --> 5, 6, 7   8 --> 9, 10, 11   12 --> 13, 14, 15
void knomial_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

}  // namespace stretto::schedule

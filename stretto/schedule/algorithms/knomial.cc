// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <utility>

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
//
//   steps           about half as many as binomial_tree: 2 for up to 16 ranks, 3 for up to 64
//   bytes per rank  every rank but the root sends the buffer once; the root receives it up to
//                   3 log4 n times
//   scratch         a slot per child, raw or partial, and a partial one per level
//   order           canonical: two levels of the tree in one reduction
//   choose it for   the smallest buffers, where steps count more than what the root takes in
//   source          Thakur, Rabenseifner and Gropp, 2005 (binomial), with four subtrees to a node
Schedule knomial_reduce(const Shape& shape) {
  ScheduleBuilder schedule(
      shape, {.algorithm = "knomial", .collective = Collective::reduce, .order = Order::canonical});
  climb_tree(schedule, shape, kLevels);
  return std::move(schedule).build();
}

// k-nomial broadcast: whoever has the buffer hands it to three that have not.
//
//   n = 16, root 0:   0 --> 4, 8, 12
//                     0 --> 1, 2, 3   4 --> 5, 6, 7   8 --> 9, 10, 11   12 --> 13, 14, 15
//
//   steps           about half as many as binomial_tree: 2 for up to 16 ranks, 3 for up to 64
//   bytes per rank  the root sends the buffer up to 3 log4 n times; others receive it once
//   scratch         none
//   order           nothing is combined
//   choose it for   the smallest buffers, where steps count more than what the root sends
//   source          Thakur, Rabenseifner and Gropp, 2005 (binomial), with four subtrees to a node
Schedule knomial_broadcast(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "knomial", .collective = Collective::broadcast});
  descend_tree(schedule, shape, kLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

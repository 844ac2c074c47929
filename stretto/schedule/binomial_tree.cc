// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/binomial_tree.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// The buffer goes down the tree from the root, which has it in `whole`, to everybody's output. The
// largest subtree is served first, because it has the longest way to go.
void hand_down(ScheduleBuilder& schedule, const Shape& shape, Slot whole) {
  const Shape from_root{shape.root, shape.rank_count, shape.root};
  const int place = neighbour(shape, -shape.root.value()).value();
  for (const Split& split : splits_above(place, shape.rank_count)) {
    if (place == split.middle) schedule.recv(neighbour(from_root, split.begin), output(0));
    if (place == split.begin) {
      schedule.send(place == 0 ? whole : output(0), neighbour(from_root, split.middle));
    }
  }
}

}  // namespace

// Binomial tree all-reduce: partial values climb the canonical tree, the result comes down.
//
//   n = 6:   1 --> 0   3 --> 2   5 --> 4      then down:  0 --> 4
//            2 --> 0                                      0 --> 2   4 --> 5
//            4 --> 0                                      0 --> 1   2 --> 3
//
//   steps           2 floor(log2 n)
//   bytes per rank  rank 0 sends and receives the buffer ceil(log2 n) times, half of the ranks once
//   scratch         two slots per child, raw or partial
//   order           canonical
//   choose it for   small buffers where few messages in all, 2(n-1), count more than few steps
//   source          Thakur, Rabenseifner and Gropp, 2005
Schedule binomial_tree_all_reduce(const Shape& shape) {
  const Shape to_zero{shape.rank, shape.rank_count, 0};
  ScheduleBuilder schedule(to_zero, {.algorithm = "binomial_tree",
                                     .collective = Collective::all_reduce,
                                     .order = Order::canonical});
  if (shape.rank_count == 1) schedule.reduce({input(0)}, {output(0)}).completes();
  Slot value = input(0);
  std::vector<Split> splits = splits_above(shape.rank.value(), shape.rank_count);
  std::ranges::reverse(splits);  // Leaves first.
  for (const Split& split : splits) {
    if (shape.rank == split.middle) schedule.send(value, split.begin);
    if (shape.rank != split.begin) continue;
    const bool leaf = split.end - split.middle == 1;
    const Slot arrived = leaf ? schedule.unused_raw(0) : schedule.unused_partial(0);
    schedule.recv(split.middle, arrived);
    const bool whole = split.end - split.begin == shape.rank_count;
    const Slot combined = whole ? output(0) : schedule.unused_partial(0);
    schedule.reduce({value, arrived}, {combined}).completes(whole);
    value = combined;
  }
  hand_down(schedule, to_zero, output(0));
  return std::move(schedule).build();
}

// Binomial tree broadcast: whoever has the buffer hands it to somebody who has not.
//
//   n = 6, root 0:   0 --> 4
//                    0 --> 2   4 --> 5
//                    0 --> 1   2 --> 3
//
//   steps           floor(log2 n); the root sends ceil(log2 n) messages
//   bytes per rank  the root sends the buffer ceil(log2 n) times; others receive it once
//   scratch         none
//   order           nothing is combined
//   choose it for   small buffers; a large one is quicker when all ranks help (direct)
//   source          Thakur, Rabenseifner and Gropp, 2005
Schedule binomial_tree_broadcast(const Shape& shape) {
  ScheduleBuilder schedule(shape,
                           {.algorithm = "binomial_tree", .collective = Collective::broadcast});
  hand_down(schedule, shape, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

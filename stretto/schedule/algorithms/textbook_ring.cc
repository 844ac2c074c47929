// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Textbook ring all-reduce: everybody's whole buffer passes by everybody.
//
//   input of r:  r --> r+1 --> r+2 --> ... --> r-1      as it is
void textbook_ring_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  std::vector<Slot> inputs(static_cast<std::size_t>(shape.rank_count));
  inputs[static_cast<std::size_t>(shape.rank)] = input(0);
  Slot passing = input(0);
  for (int hop = 1; hop < shape.rank_count; ++hop) {
    schedule.send(passing, neighbour(shape, 1));
    passing = raw(hop - 1, 0);
    schedule.recv(neighbour(shape, -1), passing);
    inputs[static_cast<std::size_t>(neighbour(shape, -hop))] = passing;
  }
  schedule.reduce(inputs, {output(0)}).completes();
}

}  // namespace stretto::schedule

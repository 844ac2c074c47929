// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <utility>
#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Textbook ring all-reduce: everybody's whole buffer passes by everybody.
//
//   input of r:  r --> r+1 --> r+2 --> ... --> r-1      as it is
//
//   steps           n-1, one message out and one in per rank in each
//   bytes per rank  n-1 times the buffer each way: n/2 times what is needed
//   scratch         n-1 raw slots
//   order           canonical: a rank that added up what passes by would begin with another input
//                   than its neighbour and end with other bits, so inputs are kept until all are in
//   choose it for   nothing: it is the reference that others are compared with
//   source          the all-reduce of the tutorial "Writing Distributed Applications with PyTorch"
Schedule textbook_ring_all_reduce(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "textbook_ring",
                                   .collective = Collective::all_reduce,
                                   .order = Order::canonical});
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
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Pairwise all-to-all: everybody sends everybody what is meant for it, one distance after the
// other.
//
//   r --> r+1   and   r-1 --> r
//   r --> r+2   and   r-2 --> r
//   ...               up to n-1
void pairwise_all_to_all(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = parcel(shape, shape.rank, shape.rank);
  schedule.copy(input(own), output(own));
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    const Rank from = neighbour(shape, -distance);
    schedule.send(input(parcel(shape, shape.rank, to)), to);
    schedule.recv(from, output(parcel(shape, from, shape.rank)));
  }
}

}  // namespace stretto::schedule

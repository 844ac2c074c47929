// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <utility>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Pairwise all-to-all: everybody sends everybody what is meant for it, one distance after the
// other.
//
//   r --> r+1   and   r-1 --> r
//   r --> r+2   and   r-2 --> r
//   ...               up to n-1
//
//   steps           1, with n-1 messages out and n-1 in per rank: none waits for another, but every
//                   rank begins them in this order, so that each hears of one rank at a time
//   bytes per rank  (n-1)/n of the buffer each way, which is optimal
//   scratch         none
//   order           nothing is combined
//   choose it for   all sizes, where any rank reaches any other equally well
//   source          Thakur, Rabenseifner and Gropp, 2005
Schedule pairwise_all_to_all(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "pairwise",
                                   .collective = Collective::all_to_all,
                                   .chunk_count = shape.rank_count * shape.rank_count});
  const ChunkIndex own = parcel(shape, shape.rank, shape.rank);
  schedule.copy(input(own), output(own));
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    const Rank from = neighbour(shape, -distance);
    schedule.send(input(parcel(shape, shape.rank, to)), to);
    schedule.recv(from, output(parcel(shape, from, shape.rank)));
  }
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Bruck all-gather: what a rank holds doubles with every step, whatever the number of ranks.
//
//   n = 5:   r+1 --> r    chunk r+1
//            r+2 --> r    chunks r+2, r+3
//            r+4 --> r    chunk r+4: what is still missing
//
//   steps           up to ceil(log2 n), each with a message per chunk
//   bytes per rank  (n-1)/n of the buffer each way, which is optimal
//   scratch         none: chunks have names, so each arrives where it belongs
//   order           nothing is combined
//   choose it for   small buffers, for any number of ranks, and links that are dear to open
//   source          Bruck et al., "Efficient algorithms for all-to-all communications in multiport
//                   message-passing systems", 1997
Schedule bruck_all_gather(const Shape& shape) {
  const int n = shape.rank_count;
  ScheduleBuilder schedule(
      shape, {.algorithm = "bruck", .collective = Collective::all_gather, .chunk_count = n});
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  for (int held = 1; held < n; held *= 2) {
    const int moved = std::min(held, n - held);
    for (int i = 0; i < moved; ++i) {
      const ChunkIndex sent = shard_of(neighbour(shape, i));
      schedule.send(i == 0 ? input(own) : output(sent), neighbour(shape, -held));
      schedule.recv(neighbour(shape, held), output(shard_of(neighbour(shape, held + i))));
    }
  }
  return std::move(schedule).build();
}

// Bruck all-to-all: a chunk that has d ranks to go makes a hop for every bit of d, short ones
// first.
//
//   n = 8:   r --> r+1    chunks with 1, 3, 5 or 7 to go
//            r --> r+2    chunks with 2, 3, 6 or 7
//            r --> r+4    chunks with 4, 5, 6 or 7
//
//   steps           up to ceil(log2 n), each with a message per chunk, n/2 of them or fewer
//   bytes per rank  up to log2 n halves of the buffer each way
//   scratch         less than 2n raw slots
//   order           nothing is combined
//   choose it for   small chunks of one size, where links are dear to open: a rank sends to
//                   ceil(log2 n) others, though more messages than pairwise_all_to_all
//   source          Bruck et al., 1997; chunks have names, so nothing is rotated before or after
Schedule bruck_all_to_all(const Shape& shape) {
  const int n = shape.rank_count;
  ScheduleBuilder schedule(
      shape, {.algorithm = "bruck", .collective = Collective::all_to_all, .chunk_count = n * n});
  // Of the chunks with `way` ranks to go in all, the one that is here after some of it.
  const auto chunk_here = [&](int way, int gone) {
    return parcel(shape, neighbour(shape, -gone), neighbour(shape, way - gone));
  };
  // Two slots in turn: a chunk arrives while the one before it is still being sent. With one, every
  // rank would wait for the next, all the way round.
  const auto resting_place = [&](int way, int gone) {
    const bool odd_hops = std::popcount(static_cast<unsigned>(gone)) % 2 == 1;
    return raw(odd_hops ? way : n + way, chunk_here(way, gone));
  };
  schedule.copy(input(chunk_here(0, 0)), output(chunk_here(0, 0)));
  for (int hop = 1; hop < n; hop *= 2) {
    for (int way = hop; way < n; ++way) {
      if ((way & hop) == 0) continue;
      const int gone = way & (hop - 1);
      const Slot leaves = gone == 0 ? input(chunk_here(way, 0)) : resting_place(way, gone);
      const bool last = gone + hop == way;
      schedule.send(leaves, neighbour(shape, hop));
      schedule.recv(neighbour(shape, -hop),
                    last ? output(chunk_here(way, way)) : resting_place(way, gone + hop));
    }
  }
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <bit>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// Bruck all-to-all: a chunk whose target is d ranks away makes one hop for every one bit of d,
// short hops first.
void bruck_all_to_all(ScheduleBuilder& schedule, const Shape& shape) {
  const int n = shape.rank_count;
  // The chunk on this rank among the chunks that travel `way` ranks in all and have travelled
  // `gone` of them.
  const auto chunk_here = [&](int way, int gone) {
    return parcel(shape, neighbour(shape, -gone), neighbour(shape, way - gone));
  };
  // Two slots are used in turn: a chunk arrives in one while the chunk before it is still being
  // sent from the other. With one slot, every rank would wait for the next, all round the ring.
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
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// The chunk that is `hops` behind the rank's own: what arrives after so many hops of a lap.
ChunkIndex chunk_behind(const Shape& shape, int hops) { return shard_of(neighbour(shape, -hops)); }

// First lap: chunk c leaves rank c+1, is combined with each rank's input, and is whole at rank c.
// Two partial slots: one receives while the other is still being sent. With one, every rank would
// wait for the next, all the way round.
void reduce_lap(ScheduleBuilder& schedule, const Shape& shape) {
  const int n = shape.rank_count;
  if (n == 1) return schedule.reduce({input(0)}, {output(0)}).completes();
  schedule.send(input(chunk_behind(shape, 1)), neighbour(shape, 1));
  for (int hop = 2; hop <= n; ++hop) {
    const ChunkIndex c = chunk_behind(shape, hop);
    const Slot sum = partial(hop % 2, c);
    const Slot arrived =
        hop == 2 ? raw(0, c) : sum;  // The first hop carries a rank's input as it is.
    schedule.recv(neighbour(shape, -1), arrived);
    if (hop == n) return schedule.reduce({arrived, input(c)}, {output(c)}).completes();
    schedule.reduce({arrived, input(c)}, {sum});
    schedule.send(sum, neighbour(shape, 1));
  }
}

// Second lap: each rank's own chunk travels round, ending at the rank before it.
void gather_lap(ScheduleBuilder& schedule, const Shape& shape, Slot own) {
  for (int hop = 1; hop < shape.rank_count; ++hop) {
    schedule.send(hop == 1 ? own : output(chunk_behind(shape, hop - 1)), neighbour(shape, 1));
    schedule.recv(neighbour(shape, -1), output(chunk_behind(shape, hop)));
  }
}

}  // namespace

// Ring all-reduce: each chunk makes two laps; the first collects, the second distributes.
void ring_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  reduce_lap(schedule, shape);
  gather_lap(schedule, shape, output(shard_of(shape.rank)));
}

// Ring reduce-scatter: the first lap of ring_all_reduce.
void ring_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  reduce_lap(schedule, shape);
}

// Ring all-gather: the second lap of ring_all_reduce.
void ring_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  gather_lap(schedule, shape, input(own));
}

// Textbook ring all-reduce: everybody's whole buffer passes by everybody.
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

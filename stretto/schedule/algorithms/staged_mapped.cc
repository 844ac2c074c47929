// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Raw slot c is for chunk c, on every rank.
Slot stage(ChunkIndex chunk) { return raw(chunk.value(), chunk); }

// Stages the chunks of this rank's input that other ranks need: all but its own chunk.
void stage_input(ScheduleBuilder& schedule, const Shape& shape) {
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const ChunkIndex c = shard_of(neighbour(shape, distance));
    schedule.copy(input(c), stage(c));
  }
}

// Every rank's input of a chunk, in the order of ranks.
std::vector<Place> contributions(const Shape& shape, ChunkIndex chunk) {
  std::vector<Place> places;
  for (int rank = 0; rank < shape.rank_count; ++rank) {
    places.push_back({rank, shape.rank == rank ? input(chunk) : stage(chunk)});
  }
  return places;
}

}  // namespace

// Note [who takes lines]: a rank takes the cache lines (Step::takes) of a slot that only it reads
// besides the owner. If all other ranks read a slot, the rank before its owner takes the lines. The
// all_reduce of eager_mapped reads slots of several owners in one step, so with more than two ranks
// no rank takes them.

// Note [one sync fewer]: these schedules do not end with a sync, although other ranks may still be
// reading this rank's raw slots. The next run uses the other set of slots. The run after that uses
// the same set again, but it starts after a sync that the readers reach only when they have
// finished (see Schedule).

// Staged mapped all-reduce: like direct_mapped, but for callers' buffers that other ranks have not
// mapped.
void staged_mapped_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex own = shard_of(shape.rank);
  stage_input(schedule, shape);
  schedule.sync();
  schedule.reduce(contributions(shape, own), {{shape.rank, output(own)}, {shape.rank, stage(own)}})
      .takes()
      .completes();
  schedule.sync();
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.copy({from, stage(shard_of(from))}, output(shard_of(from))).takes(distance == 1);
  }
}

// Staged mapped reduce-scatter: the first half of staged_mapped_all_reduce.
void staged_mapped_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  stage_input(schedule, shape);
  schedule.sync();
  const ChunkIndex own = shard_of(shape.rank);
  schedule.reduce(contributions(shape, own), {{shape.rank, output(own)}}).takes().completes();
}

// Staged mapped all-gather: each rank stages its chunk and copies the others'.
void staged_mapped_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), raw(0, own));
  schedule.sync();
  schedule.copy(input(own), output(own));
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.copy({from, raw(0, shard_of(from))}, output(shard_of(from))).takes(distance == 1);
  }
}

// Staged mapped broadcast: the root stages its buffer, and every other rank copies it.
void staged_mapped_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  const bool is_root = shape.rank == shape.root;
  if (is_root) schedule.copy(input(0), raw(0, 0));
  schedule.sync();
  schedule.copy({shape.root, is_root ? input(0) : raw(0, 0)}, output(0))
      .takes(neighbour(shape, 1) == shape.root);
}

// Staged mapped reduce: like staged_mapped_all_reduce, but only the root copies the results.
void staged_mapped_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex own = shard_of(shape.rank);
  const bool is_root = shape.rank == shape.root;
  stage_input(schedule, shape);
  schedule.sync();
  const Place result{shape.rank, is_root ? output(own) : stage(own)};
  schedule.reduce(contributions(shape, own), {result}).takes().completes();
  schedule.sync();
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.copy(Place{from, stage(shard_of(from))}, output(shard_of(from))).takes();
  }
}

// Staged mapped gather: each rank stages its chunk, the root copies them.
void staged_mapped_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  const bool is_root = shape.rank == shape.root;
  if (!is_root) schedule.copy(input(own), raw(0, own));
  schedule.sync();
  if (is_root) schedule.copy(input(own), output(own));
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.copy(Place{from, raw(0, shard_of(from))}, output(shard_of(from))).takes();
  }
}

// Staged mapped scatter: the root copies the chunk of each rank into a slot of that rank. Slots in
// the root's own window would have to be n-1, and all ranks would need as many.
void staged_mapped_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  const bool is_root = shape.rank == shape.root;
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    schedule.copy(input(shard_of(to)), Place{to, raw(0, shard_of(to))});
  }
  schedule.sync();
  schedule.copy(Place{shape.rank, is_root ? input(own) : raw(0, own)}, output(own)).takes();
}

// Staged mapped all-to-all: each rank stages its chunks for the other ranks, and copies the chunks
// that they have staged for it.
void staged_mapped_all_to_all(ScheduleBuilder& schedule, const Shape& shape) {
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    const ChunkIndex chunk = parcel(shape, shape.rank, to);
    schedule.copy(input(chunk), raw(to.value(), chunk));
  }
  schedule.sync();
  const ChunkIndex own = parcel(shape, shape.rank, shape.rank);
  schedule.copy(input(own), output(own));
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    const ChunkIndex chunk = parcel(shape, from, shape.rank);
    schedule.copy(Place{from, raw(shape.rank.value(), chunk)}, output(chunk)).takes();
  }
}

// Eager mapped all-reduce: each rank stages its whole buffer and reduces the buffers of all ranks.
void eager_mapped_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.copy(input(0), stage(0));
  schedule.sync();
  schedule.reduce(contributions(shape, 0), {{shape.rank, output(0)}})
      .takes(shape.rank_count == 2)
      .completes();
}

// Eager mapped reduce: like eager_mapped_all_reduce, but only the root reduces.
void eager_mapped_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const bool is_root = shape.rank == shape.root;
  if (!is_root) schedule.copy(input(0), stage(0));
  schedule.sync();
  if (!is_root) return;
  schedule.reduce(contributions(shape, 0), {{shape.rank, output(0)}}).takes().completes();
}

}  // namespace stretto::schedule

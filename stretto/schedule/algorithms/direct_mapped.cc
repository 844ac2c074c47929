// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// The slot `slot` of every rank, in the order of ranks.
std::vector<Place> of_all_ranks(const Shape& shape, Slot slot) {
  std::vector<Place> places;
  for (int rank = 0; rank < shape.rank_count; ++rank) places.push_back({rank, slot});
  return places;
}

// The slot `slot` of every rank, starting with the shape's own rank: an execution that copies the
// result to the other ranks reads the first target again.
std::vector<Place> own_and_others(const Shape& shape, Slot slot) {
  std::vector<Place> places;
  for (int i = 0; i < shape.rank_count; ++i) places.push_back({neighbour(shape, i), slot});
  return places;
}

}  // namespace

// Note [syncs around callers' buffers]: after the first sync, all callers have filled their inputs
// and given up their outputs. After the last sync, no other rank touches a caller's buffers any
// more, so the caller may go on.

// Direct mapped all-reduce: each rank reduces its chunk from every rank's input into every rank's
// output.
void direct_mapped_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex own = shard_of(shape.rank);
  schedule.sync();
  schedule.reduce(of_all_ranks(shape, input(own)), own_and_others(shape, output(own))).completes();
  schedule.sync();
}

// Direct mapped reduce-scatter: rank c reduces chunk c from every rank's input.
void direct_mapped_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.sync();
  schedule.reduce(of_all_ranks(shape, input(own)), {{shape.rank, output(own)}}).completes();
  schedule.sync();
}

// Direct mapped all-gather: every rank copies every rank's chunk.
void direct_mapped_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.sync();
  for (int distance = 0; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.copy({from, input(shard_of(from))}, output(shard_of(from)));
  }
  schedule.sync();
}

// Direct mapped broadcast: every rank copies the root's buffer, except for one chunk. The root,
// which would be idle otherwise, copies this chunk to all of them.
void direct_mapped_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex of_root = shard_of(shape.root);
  const bool is_root = shape.rank == shape.root;
  schedule.sync();
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    schedule.copy(input(of_root), Place{neighbour(shape, distance), output(of_root)});
  }
  for (int distance = 0; distance < shape.rank_count; ++distance) {
    const ChunkIndex c = shard_of(neighbour(shape, distance));
    if (is_root || c != of_root) schedule.copy(Place{shape.root, input(c)}, output(c));
  }
  schedule.sync();
}

// Mapped barrier: one sync.
void direct_mapped_barrier(ScheduleBuilder& schedule, const Shape& /*shape*/) { schedule.sync(); }

// Direct mapped reduce: each rank reduces its chunk from every rank's input into the root's output.
void direct_mapped_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex own = shard_of(shape.rank);
  schedule.sync();
  schedule.reduce(of_all_ranks(shape, input(own)), {{shape.root, output(own)}}).completes();
  schedule.sync();
}

// Direct mapped gather: every rank copies its chunk into the root's output.
void direct_mapped_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.sync();
  schedule.copy(input(own), Place{shape.root, output(own)});
  schedule.sync();
}

// Direct mapped scatter: every rank copies its chunk from the root's input.
void direct_mapped_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.sync();
  schedule.copy(Place{shape.root, input(own)}, output(own));
  schedule.sync();
}

// Direct mapped all-to-all: every rank copies the chunks for it from every rank's input.
void direct_mapped_all_to_all(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.sync();
  for (int distance = 0; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    const ChunkIndex chunk = parcel(shape, from, shape.rank);
    schedule.copy(Place{from, input(chunk)}, output(chunk));
  }
  schedule.sync();
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Every rank sends each other rank the chunk that the other rank owns. Then it reduces its own
// chunk from all inputs at once into `result`. Rank r sends to r+1 first, so that no rank is the
// first target of all others.
void reduce_shard(ScheduleBuilder& schedule, const Shape& shape, Slot result) {
  const int own = shape.rank.value();
  auto slot_of = [own](int rank) { return raw(rank < own ? rank : rank - 1, own); };
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    const Rank from = neighbour(shape, -distance);
    schedule.send(input(shard_of(to)), to);
    schedule.recv(from, slot_of(from.value()));
  }
  std::vector<Slot> contributions;
  for (int rank = 0; rank < shape.rank_count; ++rank) {
    contributions.push_back(rank == own ? input(own) : slot_of(rank));
  }
  schedule.reduce(contributions, {result}).completes();
}

// Every rank sends its own chunk, which lies in the slot `own`, to each other rank.
void spread_shard(ScheduleBuilder& schedule, const Shape& shape, Slot own) {
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, -distance);
    schedule.send(own, neighbour(shape, distance));
    schedule.recv(from, output(shard_of(from)));
  }
}

}  // namespace

// Direct all-reduce: inputs are sent directly to the owner of the chunk, and it sends the result
// directly back.
void direct_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  reduce_shard(schedule, shape, output(shard_of(shape.rank)));
  spread_shard(schedule, shape, output(shard_of(shape.rank)));
}

// Direct reduce-scatter: the first half of direct_all_reduce.
void direct_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  reduce_shard(schedule, shape, output(shard_of(shape.rank)));
}

// Direct all-gather: every rank sends its chunk to every other rank.
void direct_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  spread_shard(schedule, shape, input(own));
}

// Direct broadcast: the root sends each other rank a chunk of the buffer. These ranks then send
// their chunks to each other.
void direct_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  const int owners = shape.rank_count - 1;  // Owner k is the k-th rank after the root.
  schedule.cut_into(std::max(owners, 1));
  const Shape from_root{shape.root, shape.rank_count, shape.root};
  if (shape.rank == shape.root) {
    for (int k = 0; k < owners; ++k) schedule.send(input(k), neighbour(from_root, k + 1));
    for (int k = 0; k < std::max(owners, 1); ++k) schedule.copy(input(k), output(k));
    return;
  }
  const int own = neighbour(shape, -shape.root.value() - 1).value();
  schedule.recv(shape.root, output(own));
  for (int distance = 1; distance < owners; ++distance) {
    const int to = (own + distance) % owners;
    const int from = (own + owners - distance) % owners;
    schedule.send(output(own), neighbour(from_root, to + 1));
    schedule.recv(neighbour(from_root, from + 1), output(from));
  }
}

// Direct reduce: inputs are sent directly to the owner of the chunk, and it sends the result
// directly to the root.
void direct_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const ChunkIndex own = shard_of(shape.rank);
  const bool is_root = shape.rank == shape.root;
  const Slot result = is_root ? output(own) : raw(shape.rank_count - 1, own);
  reduce_shard(schedule, shape, result);
  if (!is_root) schedule.send(result, shape.root);
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.recv(from, output(shard_of(from)));
  }
}

// Direct gather: every rank sends its chunk to the root.
void direct_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  if (shape.rank != shape.root) {
    schedule.send(input(own), shape.root);
    return;
  }
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.recv(from, output(shard_of(from)));
  }
  schedule.copy(input(own), output(own));
}

// Direct scatter: the root sends every rank its chunk.
void direct_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  if (shape.rank != shape.root) {
    schedule.recv(shape.root, output(own));
    return;
  }
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    schedule.send(input(shard_of(to)), to);
  }
  schedule.copy(input(own), output(own));
}

// Direct barrier: every rank sends rank 0 a signal; then rank 0 sends a signal to all.
void direct_barrier(ScheduleBuilder& schedule, const Shape& shape) {
  if (shape.rank != 0) {
    schedule.send_signal(0);
    schedule.recv_signal(0);
    return;
  }
  for (int other = 1; other < shape.rank_count; ++other) schedule.recv_signal(other);
  for (int other = 1; other < shape.rank_count; ++other) schedule.send_signal(other);
}

// Pairwise all-to-all: every rank sends every other rank its chunk, one distance after the other.
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

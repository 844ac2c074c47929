// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Every rank sends each other rank the chunk that one owns, and reduces its own chunk from all
// inputs at once into `result`. Rank r starts with r+1, so that no rank is everybody's first.
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

// Every rank sends its own chunk, which lies in `own`, to each other rank.
void spread_shard(ScheduleBuilder& schedule, const Shape& shape, Slot own) {
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, -distance);
    schedule.send(own, neighbour(shape, distance));
    schedule.recv(from, output(shard_of(from)));
  }
}

}  // namespace

// Direct all-reduce: inputs go straight to the rank that owns the chunk, its result straight back.
//
//   chunk c:  0 --\            /--> 0
//             1 ---> c reduces ---> 1
//             2 --/            \--> 2
//
//   steps           2, in each n-1 messages out and n-1 in per rank
//   bytes per rank  2(n-1)/n of the buffer each way, which is optimal
//   scratch         n-1 raw slots
//   order           canonical
//   choose it for   all but the smallest buffers, where any rank reaches any other equally well
//   source          Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
//                   Operations in MPICH", 2005 (pairwise exchange), for both halves
Schedule direct_all_reduce(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "direct",
                                   .collective = Collective::all_reduce,
                                   .order = Order::canonical,
                                   .chunk_count = shape.rank_count});
  reduce_shard(schedule, shape, output(shard_of(shape.rank)));
  spread_shard(schedule, shape, output(shard_of(shape.rank)));
  return std::move(schedule).build();
}

// Direct reduce-scatter: the first half of direct_all_reduce.
//
//   chunk c:  0, 1, 2, ... --> c reduces
//
//   steps           1, with n-1 messages out and n-1 in per rank
//   bytes per rank  (n-1)/n of the buffer each way, which is optimal
//   scratch         n-1 raw slots
//   order           canonical
//   choose it for   all sizes, where any rank reaches any other equally well
//   source          Thakur, Rabenseifner and Gropp, 2005
Schedule direct_reduce_scatter(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "direct",
                                   .collective = Collective::reduce_scatter,
                                   .order = Order::canonical,
                                   .chunk_count = shape.rank_count});
  reduce_shard(schedule, shape, output(shard_of(shape.rank)));
  return std::move(schedule).build();
}

// Direct all-gather: everybody sends its chunk to everybody.
//
//   chunk c:  c --> 0, 1, 2, ...
//
//   steps           1, with n-1 messages out and n-1 in per rank
//   bytes per rank  (n-1)/n of the buffer each way, which is optimal
//   scratch         none
//   order           nothing is combined
//   choose it for   all sizes, where any rank reaches any other equally well
//   source          Thakur, Rabenseifner and Gropp, 2005
Schedule direct_all_gather(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "direct",
                                   .collective = Collective::all_gather,
                                   .chunk_count = shape.rank_count});
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  spread_shard(schedule, shape, input(own));
  return std::move(schedule).build();
}

// Direct broadcast: the root deals the buffer out to the others, who show each other what they got.
//
//   chunk c:  root --> owner of c --> everybody else but the root
//
//   steps           2; the root sends n-1 messages, then every other rank n-2
//   bytes per rank  root: the buffer once, which is optimal; others send (n-2)/(n-1) of it
//   scratch         none
//   order           nothing is combined
//   choose it for   large buffers; a small one is quicker down a binomial tree
//   source          Barnett et al., "Interprocessor collective communication library", 1994
//                   (scatter, then collect), with n-1 chunks because the root needs none
Schedule direct_broadcast(const Shape& shape) {
  const int owners = shape.rank_count - 1;  // Owner k is the k-th rank after the root.
  ScheduleBuilder schedule(shape, {.algorithm = "direct",
                                   .collective = Collective::broadcast,
                                   .chunk_count = std::max(owners, 1)});
  const Shape from_root{shape.root, shape.rank_count, shape.root};
  if (shape.rank == shape.root) {
    for (int k = 0; k < owners; ++k) schedule.send(input(k), neighbour(from_root, k + 1));
    for (int k = 0; k < std::max(owners, 1); ++k) schedule.copy(input(k), output(k));
    return std::move(schedule).build();
  }
  const int own = neighbour(shape, -shape.root.value() - 1).value();
  schedule.recv(shape.root, output(own));
  for (int distance = 1; distance < owners; ++distance) {
    const int to = (own + distance) % owners;
    const int from = (own + owners - distance) % owners;
    schedule.send(output(own), neighbour(from_root, to + 1));
    schedule.recv(neighbour(from_root, from + 1), output(from));
  }
  return std::move(schedule).build();
}

// Direct reduce: inputs go straight to the rank that owns the chunk, its result straight to the
// root.
//
//   chunk c:  0, 1, 2, ... --> c reduces --> root
//
//   steps           2; n-1 messages out and n-1 in per rank, then one out, and n-1 in at the root
//   bytes per rank  the buffer once, the root (n-1)/n of it; the root receives 2(n-1)/n of it
//   scratch         n raw slots; the root n-1
//   order           canonical
//   choose it for   all but the smallest buffers, where any rank reaches any other equally well
//   source          Thakur, Rabenseifner and Gropp, 2005 (reduce-scatter, then gather)
Schedule direct_reduce(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "direct",
                                   .collective = Collective::reduce,
                                   .order = Order::canonical,
                                   .chunk_count = shape.rank_count});
  const ChunkIndex own = shard_of(shape.rank);
  const bool is_root = shape.rank == shape.root;
  const Slot result = is_root ? output(own) : raw(shape.rank_count - 1, own);
  reduce_shard(schedule, shape, result);
  if (!is_root) schedule.send(result, shape.root);
  for (int distance = 1; is_root && distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.recv(from, output(shard_of(from)));
  }
  return std::move(schedule).build();
}

// Direct gather: everybody sends its chunk to the root.
//
//   chunk c:  c --> root
//
//   steps           1, with n-1 messages in at the root
//   bytes per rank  1/n of the buffer, which is optimal; the root receives (n-1)/n of it
//   scratch         none
//   order           nothing is combined
//   choose it for   all sizes, where the root reaches any other rank equally well
//   source          folklore
Schedule direct_gather(const Shape& shape) {
  ScheduleBuilder schedule(
      shape,
      {.algorithm = "direct", .collective = Collective::gather, .chunk_count = shape.rank_count});
  const ChunkIndex own = shard_of(shape.rank);
  if (shape.rank != shape.root) {
    schedule.send(input(own), shape.root);
    return std::move(schedule).build();
  }
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    schedule.recv(from, output(shard_of(from)));
  }
  schedule.copy(input(own), output(own));
  return std::move(schedule).build();
}

// Direct scatter: the root sends everybody its chunk.
//
//   chunk c:  root --> c
//
//   steps           1, with n-1 messages out at the root
//   bytes per rank  the root sends (n-1)/n of the buffer, which is optimal; others none
//   scratch         none
//   order           nothing is combined
//   choose it for   all sizes, where the root reaches any other rank equally well
//   source          folklore
Schedule direct_scatter(const Shape& shape) {
  ScheduleBuilder schedule(
      shape,
      {.algorithm = "direct", .collective = Collective::scatter, .chunk_count = shape.rank_count});
  const ChunkIndex own = shard_of(shape.rank);
  if (shape.rank != shape.root) {
    schedule.recv(shape.root, output(own));
    return std::move(schedule).build();
  }
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    schedule.send(input(shard_of(to)), to);
  }
  schedule.copy(input(own), output(own));
  return std::move(schedule).build();
}

// Direct barrier: everybody reports to rank 0, which lets everybody go.
//
//   0 <-- 1, 2, 3, ...    then    0 --> 1, 2, 3, ...      signals, messages of no bytes
//
//   steps           2, in each n-1 messages to or from rank 0
//   bytes per rank  none
//   scratch         none
//   order           nothing is combined
//   choose it for   knowing who is missing: rank 0 hears of each rank from that rank itself
//   source          folklore (the central counter)
Schedule direct_barrier(const Shape& shape) {
  ScheduleBuilder schedule(
      shape, {.algorithm = "direct", .collective = Collective::barrier, .chunk_count = 0});
  if (shape.rank != 0) {
    schedule.send_signal(0);
    schedule.recv_signal(0);
    return std::move(schedule).build();
  }
  for (int other = 1; other < shape.rank_count; ++other) schedule.recv_signal(other);
  for (int other = 1; other < shape.rank_count; ++other) schedule.send_signal(other);
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

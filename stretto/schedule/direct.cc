// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/direct.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Every rank sends each other rank the chunk that one owns, and reduces its own chunk from all
// inputs at once. Rank r starts with r+1, so that no rank is everybody's first.
void reduce_shard(ScheduleBuilder& schedule, const Shape& shape) {
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
  schedule.reduce(contributions, {output(own)}).completes();
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
  reduce_shard(schedule, shape);
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
  reduce_shard(schedule, shape);
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

}  // namespace stretto::schedule

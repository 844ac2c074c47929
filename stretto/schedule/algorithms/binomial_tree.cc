// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/algorithms/tree_walk.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// Of the canonical tree, in one step: of binomial_tree, and of knomial, whose radix is 4.
constexpr std::int32_t kLevels = 1;
constexpr std::int32_t kMergedLevels = 2;

// Ranks on the tree are placed from the root on; the chunk of a place is that of its rank.
class Placement {
 public:
  explicit Placement(const Shape& shape)
      : from_root_{shape.root, shape.rank_count, shape.root},
        place_(neighbour(shape, -shape.root.value()).value()) {}

  int own() const { return place_; }
  Rank rank_at(int place) const { return neighbour(from_root_, place); }
  ChunkIndex chunk_of(int place) const { return shard_of(rank_at(place)); }
  // Where this rank keeps, on its way, what belongs to a place below it.
  Slot on_the_way(int place) const { return raw(place - place_ - 1, chunk_of(place)); }

 private:
  Shape from_root_;
  int place_;
};

std::vector<Split> leaves_first(std::vector<Split> splits) {
  std::ranges::reverse(splits);
  return splits;
}

}  // namespace

// Binomial tree all-reduce: partial values climb the canonical tree, the result comes down.
void binomial_tree_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const Shape to_zero{shape.rank, shape.rank_count, 0};
  climb_tree(schedule, to_zero, kLevels);
  descend_tree(schedule, to_zero, kLevels, output(0));
}

// Binomial tree broadcast: whoever has the buffer hands it to somebody who has not.
void binomial_tree_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

// Binomial tree reduce: partial values climb the canonical tree to whichever rank is root.
void binomial_tree_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  climb_tree(schedule, shape, kLevels);
}

// Binomial tree gather: every rank hands on its own chunk and those of the ranks below it.
void binomial_tree_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const Placement placement(shape);
  const int own = placement.own();
  const bool is_root = own == 0;
  const auto collected = [&](int place) {
    return is_root ? output(placement.chunk_of(place)) : placement.on_the_way(place);
  };
  if (is_root) schedule.copy(input(placement.chunk_of(own)), output(placement.chunk_of(own)));
  for (const Split& split : leaves_first(splits_above(own, shape.rank_count))) {
    for (int place = split.middle; place < split.end; ++place) {
      if (own == split.begin) schedule.recv(placement.rank_at(split.middle), collected(place));
      if (own == split.middle) {
        const Slot slot = place == own ? input(placement.chunk_of(own)) : collected(place);
        schedule.send(slot, placement.rank_at(split.begin));
      }
    }
  }
}

// Binomial tree scatter: whoever has several ranks' chunks hands on half of them.
void binomial_tree_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  const Placement placement(shape);
  const int own = placement.own();
  const bool is_root = own == 0;
  const auto handed = [&](int place) {
    return is_root ? input(placement.chunk_of(place)) : placement.on_the_way(place);
  };
  for (const Split& split : splits_above(own, shape.rank_count)) {
    for (int place = split.middle; place < split.end; ++place) {
      if (own == split.middle) {
        const Slot slot = place == own ? output(placement.chunk_of(own)) : handed(place);
        schedule.recv(placement.rank_at(split.begin), slot);
      }
      if (own == split.begin) schedule.send(handed(place), placement.rank_at(split.middle));
    }
  }
  if (is_root) schedule.copy(input(placement.chunk_of(own)), output(placement.chunk_of(own)));
}

// Binomial tree barrier: word that all have come climbs to rank 0, leave to go on comes down.
void binomial_tree_barrier(ScheduleBuilder& schedule, const Shape& shape) {
  const std::vector<Split> splits = splits_above(shape.rank.value(), shape.rank_count);
  for (const Split& split : leaves_first(splits)) {
    if (shape.rank == split.middle) schedule.send_signal(split.begin);
    if (shape.rank == split.begin) schedule.recv_signal(split.middle);
  }
  for (const Split& split : splits) {
    if (shape.rank == split.middle) schedule.recv_signal(split.begin);
    if (shape.rank == split.begin) schedule.send_signal(split.middle);
  }
}

// k-nomial reduce: up to four subtrees of the canonical tree meet in one step.
void knomial_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  climb_tree(schedule, shape, kMergedLevels);
}

// k-nomial broadcast: whoever has the buffer hands it to three that have not.
void knomial_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kMergedLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

}  // namespace stretto::schedule

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// How many levels of the canonical tree one step covers, for the whole buffer as one chunk: one in
// binomial_tree, where a node has two subtrees, and two in knomial, where it has up to four.
constexpr std::int32_t kLevels = 1;
constexpr std::int32_t kMergedLevels = 2;

// The leader of the ranks [begin, end).
Rank leader_of(std::int32_t begin, std::int32_t end, Rank root) {
  const bool has_root = begin <= root.value() && root.value() < end;
  return has_root ? root : Rank(begin);
}

// Receives the values of a node's other subtrees from their leaders, and reduces them with this
// rank's own `value`. Returns where the node's value lies.
Slot collect(ScheduleBuilder& schedule, const Shape& shape, const std::vector<std::int32_t>& bounds,
             Slot value) {
  std::vector<Slot> sources;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const Rank leader = leader_of(bounds[i], bounds[i + 1], shape.root);
    if (leader == shape.rank) {
      sources.push_back(value);
      continue;
    }
    const bool leaf = bounds[i + 1] - bounds[i] == 1;
    const Slot arrived = leaf ? schedule.unused_raw(0) : schedule.unused_partial(0);
    schedule.recv(leader, arrived);
    sources.push_back(arrived);
  }
  const bool whole = bounds.back() - bounds.front() == shape.rank_count;
  const Slot combined = whole ? output(0) : schedule.unused_partial(0);
  schedule.reduce(sources, {combined}).completes(whole);
  return combined;
}

// Every rank's input climbs to the shape's root, whose output then holds the result. The leader of
// a node is the root if the root is below that node, and the first rank below it otherwise. So the
// tree is the canonical one for every root, and the root needs no extra hop.
void climb_tree(ScheduleBuilder& schedule, const Shape& shape, std::int32_t merged_levels) {
  if (shape.rank_count == 1) return schedule.reduce({input(0)}, {output(0)}).completes();
  const auto nodes = merged_nodes_above(shape.rank.value(), shape.rank_count, merged_levels);
  Slot value = input(0);
  for (auto bounds = nodes.rbegin(); bounds != nodes.rend(); ++bounds) {  // Leaves first.
    const Rank collector = leader_of(bounds->front(), bounds->back(), shape.root);
    if (collector != shape.rank) return schedule.send(value, collector);
    value = collect(schedule, shape, *bounds, value);
  }
}

// Places ranks on the tree in ring order, starting with the root. The chunk of a place is the chunk
// of the rank there.
class Placement {
 public:
  explicit Placement(const Shape& shape)
      : from_root_{shape.root, shape.rank_count, shape.root},
        place_(neighbour(shape, -shape.root.value()).value()) {}

  int own() const { return place_; }
  Rank rank_at(int place) const { return neighbour(from_root_, place); }
  ChunkIndex chunk_of(int place) const { return shard_of(rank_at(place)); }
  // The slot in which this rank keeps a chunk for a place below it, until it sends the chunk on.
  Slot on_the_way(int place) const { return raw(place - place_ - 1, chunk_of(place)); }

 private:
  Shape from_root_;
  int place_;
};

// The root's buffer, in its slot `whole`, goes down to the output of every rank. The largest
// subtree is served first, because its data have the longest way to go.
void descend_tree(ScheduleBuilder& schedule, const Shape& shape, std::int32_t merged_levels,
                  Slot whole) {
  const Placement placement(shape);
  const int own = placement.own();
  for (const auto& bounds : merged_nodes_above(own, shape.rank_count, merged_levels)) {
    for (std::size_t i = 1; i + 1 < bounds.size(); ++i) {
      if (own == bounds[i]) schedule.recv(placement.rank_at(bounds.front()), output(0));
      if (own == bounds.front()) {
        schedule.send(own == 0 ? whole : output(0), placement.rank_at(bounds[i]));
      }
    }
  }
}

}  // namespace

// Binomial tree all-reduce: partial values climb the canonical tree, the result comes down.
void binomial_tree_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const Shape to_zero{shape.rank, shape.rank_count, 0};
  climb_tree(schedule, to_zero, kLevels);
  descend_tree(schedule, to_zero, kLevels, output(0));
}

// Binomial tree broadcast: in each step, every rank that has the buffer sends it to one that has
// not.
void binomial_tree_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

// Binomial tree reduce: partial values climb the canonical tree to the root, which may be any rank.
void binomial_tree_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  climb_tree(schedule, shape, kLevels);
}

// Binomial tree gather: every rank sends up its own chunk and the chunks of the ranks below it.
void binomial_tree_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const Placement placement(shape);
  const int own = placement.own();
  const bool is_root = own == 0;
  const auto collected = [&](int place) {
    return is_root ? output(placement.chunk_of(place)) : placement.on_the_way(place);
  };
  if (is_root) schedule.copy(input(placement.chunk_of(own)), output(placement.chunk_of(own)));
  for (const Split& split : splits_upwards(own, shape.rank_count)) {
    for (int place = split.middle; place < split.end; ++place) {
      if (own == split.begin) schedule.recv(placement.rank_at(split.middle), collected(place));
      if (own == split.middle) {
        const Slot slot = place == own ? input(placement.chunk_of(own)) : collected(place);
        schedule.send(slot, placement.rank_at(split.begin));
      }
    }
  }
}

// Binomial tree scatter: every rank that has the chunks of several ranks sends on half of them.
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

// Binomial tree barrier: signals that all ranks have come climb to rank 0; signals to go on come
// down.
void binomial_tree_barrier(ScheduleBuilder& schedule, const Shape& shape) {
  for (const Split& split : splits_upwards(shape.rank.value(), shape.rank_count)) {
    if (shape.rank == split.middle) schedule.send_signal(split.begin);
    if (shape.rank == split.begin) schedule.recv_signal(split.middle);
  }
  for (const Split& split : splits_above(shape.rank.value(), shape.rank_count)) {
    if (shape.rank == split.middle) schedule.recv_signal(split.begin);
    if (shape.rank == split.begin) schedule.send_signal(split.middle);
  }
}

// k-nomial reduce: up to four subtrees of the canonical tree meet in one step.
void knomial_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  climb_tree(schedule, shape, kMergedLevels);
}

// k-nomial broadcast: in each step, every rank that has the buffer sends it to up to three that
// have not.
void knomial_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kMergedLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

}  // namespace stretto::schedule

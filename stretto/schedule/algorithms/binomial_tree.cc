// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// So many levels of the canonical tree a whole buffer, as one chunk, goes up or down in one step:
// in binomial_tree, where a node has two subtrees, and in knomial, where it has up to four.
constexpr std::int32_t kLevels = 1;
constexpr std::int32_t kMergedLevels = 2;

// Who speaks for the ranks [begin, end).
Rank leader_of(std::int32_t begin, std::int32_t end, Rank root) {
  const bool has_root = begin <= root.value() && root.value() < end;
  return has_root ? root : Rank(begin);
}

// Takes in what the leaders of a node's other subtrees send, and reduces it with this rank's own
// value. Returns where the node's value lies.
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

// Every rank's input climbs to the shape's root, whose output holds the result in the end. Of the
// ranks below a node the root speaks for all, and where it is not among them, the first: so the
// tree stays the canonical one whoever is root, and the root needs no extra hop.
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

// The root's buffer, which lies in `whole` there, goes down to everybody's output. Ranks are placed
// on the tree from the root on. The largest subtree is served first: it has the longest way to go.
void descend_tree(ScheduleBuilder& schedule, const Shape& shape, std::int32_t merged_levels,
                  Slot whole) {
  const Shape from_root{shape.root, shape.rank_count, shape.root};
  const std::int32_t place = neighbour(shape, -shape.root.value()).value();
  for (const auto& bounds : merged_nodes_above(place, shape.rank_count, merged_levels)) {
    const Rank leader = neighbour(from_root, bounds.front());
    for (std::size_t i = 1; i + 1 < bounds.size(); ++i) {
      if (place == bounds[i]) schedule.recv(leader, output(0));
      if (place == bounds.front()) {
        schedule.send(place == 0 ? whole : output(0), neighbour(from_root, bounds[i]));
      }
    }
  }
}

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

// k-nomial broadcast: whoever has the buffer hands it to three that have not.
void knomial_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  descend_tree(schedule, shape, kMergedLevels, input(0));
  if (shape.rank == shape.root) schedule.copy(input(0), output(0));
}

}  // namespace stretto::schedule

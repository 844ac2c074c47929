// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/tree_walk.h"

#include <vector>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

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

}  // namespace

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

}  // namespace stretto::schedule

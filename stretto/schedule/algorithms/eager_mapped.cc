// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <vector>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Everybody's whole input, in the order of ranks.
std::vector<Place> whole_inputs(const Shape& shape) {
  std::vector<Place> places;
  for (int rank = 0; rank < shape.rank_count; ++rank) {
    places.push_back({rank, shape.rank == rank ? input(0) : raw(0, 0)});
  }
  return places;
}

}  // namespace

// No sync ends these schedules: see staged_mapped.cc, Note [one sync fewer].

// Eager mapped all-reduce: everybody lays out its whole buffer, and reduces everybody's.
//
//   r:  input --> raw 0 of r;   sync
//   r:  raw 0 of the others and own input --> output of r
void eager_mapped_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.copy(input(0), raw(0, 0));
  schedule.sync();
  schedule.reduce(whole_inputs(shape), {{shape.rank, output(0)}}).completes();
}

// Eager mapped reduce: the same, where only the root has a result.
//
//   r:     input --> raw 0 of r, for every r but root;   sync
//   root:  raw 0 of the others and own input --> output of root
void eager_mapped_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const bool is_root = shape.rank == shape.root;
  if (!is_root) schedule.copy(input(0), raw(0, 0));
  schedule.sync();
  if (is_root) schedule.reduce(whole_inputs(shape), {{shape.rank, output(0)}}).completes();
}

}  // namespace stretto::schedule

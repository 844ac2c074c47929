// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <utility>
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
//
//   steps           1 sync
//   bytes per rank  n-1 buffers read on other ranks, and one staged
//   scratch         1 raw slot
//   order           canonical
//   choose it for   buffers so small that a second sync would cost more than the bytes; of two
//                   ranks, who read no more by it, what stays in their caches
//   source          the "symmetric" all-reduce of DeepSpeed's shared-memory backend (2024)
Schedule eager_mapped_all_reduce(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "eager_mapped",
                                   .collective = Collective::all_reduce,
                                   .access = Access::mapped,
                                   .order = Order::canonical});
  schedule.copy(input(0), raw(0, 0));
  schedule.sync();
  schedule.reduce(whole_inputs(shape), {{shape.rank, output(0)}}).completes();
  return std::move(schedule).build();
}

// Eager mapped reduce: the same, where only the root has a result.
//
//   r:     input --> raw 0 of r, for every r but root;   sync
//   root:  raw 0 of the others and own input --> output of root
//
//   steps           1 sync
//   bytes per rank  the root reads n-1 buffers on other ranks, which stage one each
//   scratch         1 raw slot
//   order           canonical
//   choose it for   buffers so small that a second sync would cost more than the bytes; of two
//                   ranks all sizes, since one of them lays out while the other reads
//   source          as eager_mapped_all_reduce
Schedule eager_mapped_reduce(const Shape& shape) {
  ScheduleBuilder schedule(shape, {.algorithm = "eager_mapped",
                                   .collective = Collective::reduce,
                                   .access = Access::mapped,
                                   .order = Order::canonical});
  const bool is_root = shape.rank == shape.root;
  if (!is_root) schedule.copy(input(0), raw(0, 0));
  schedule.sync();
  if (is_root) schedule.reduce(whole_inputs(shape), {{shape.rank, output(0)}}).completes();
  return std::move(schedule).build();
}

}  // namespace stretto::schedule

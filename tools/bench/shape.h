// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/operation.h"

namespace stretto::bench {

// The buffers of one rank, in elements.
struct Shape {
  std::size_t input = 0;
  std::size_t output = 0;
  std::size_t share = 0;  // Of each rank, where there are shares.
  std::size_t bytes = 0;  // Of the larger side: what a line is about.
};

// For about `bytes` of `element_bytes` each. Where every rank has a share, it is at least one
// element and the same for all; then the shape's own bytes say how many there really are.
Shape shape_of(Collective operation, int ranks, std::size_t bytes, std::size_t element_bytes);

// What algorithm bandwidth is multiplied by to compare with the speed of the links, whatever the
// number of ranks; as in nccl-tests. 0 for a barrier.
double bus_factor(Collective operation, int ranks);

// Whether the output is the input, if nobody says otherwise: for what has the same bytes on both
// sides.
bool usually_in_place(Collective operation);

}  // namespace stretto::bench

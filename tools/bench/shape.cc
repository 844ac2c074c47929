// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/shape.h"

#include <algorithm>

namespace stretto::bench {

Shape shape_of(Collective operation, int ranks, std::size_t bytes, std::size_t element_bytes) {
  const auto shares = static_cast<std::size_t>(ranks);
  const std::size_t count = std::max<std::size_t>(1, bytes / element_bytes);
  const std::size_t share = std::max<std::size_t>(1, count / shares);
  Shape shape;
  switch (operation) {
    case Collective::barrier:
      return shape;
    case Collective::reduce_scatter:
    case Collective::scatter:
      shape = {.input = share * shares, .output = share, .share = share, .bytes = 0};
      break;
    case Collective::all_gather:
    case Collective::gather:
      shape = {.input = share, .output = share * shares, .share = share, .bytes = 0};
      break;
    case Collective::all_to_all:
      shape = {.input = share * shares, .output = share * shares, .share = share, .bytes = 0};
      break;
    default:
      shape = {.input = count, .output = count, .share = count, .bytes = 0};
  }
  shape.bytes = std::max(shape.input, shape.output) * element_bytes;
  return shape;
}

double bus_factor(Collective operation, int ranks) {
  const double p = ranks;
  switch (operation) {
    case Collective::all_reduce:
      return 2 * (p - 1) / p;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter:
      return (p - 1) / p;
    case Collective::barrier:
      return 0;
    default:
      return 1;
  }
}

bool usually_in_place(Collective operation) {
  return operation == Collective::all_reduce || operation == Collective::reduce ||
         operation == Collective::broadcast || operation == Collective::point_to_point;
}

}  // namespace stretto::bench

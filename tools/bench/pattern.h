// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"

namespace stretto::bench {

// What the ranks write to their inputs, and what must come out. Small whole numbers, so that every
// dtype holds them and their reduction exactly, whatever the order; different for each rank and
// each iteration, so that what was left from the one before is not taken for a result. The numbers
// repeat every kPeriod elements: writing them costs no more than a copy. That is a prime, so that
// data that lands a power of two away from its place is noticed, another rank's share above all.
class Pattern {
 public:
  static constexpr std::size_t kPeriod = 251;

  Pattern(DType dtype, ReduceOp op, int ranks);

  // Elements [first, first + target.count) of what `rank` has in this iteration.
  void fill(View target, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is that.
  bool is_input(ConstView data, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is the reduction of those elements of all ranks.
  bool is_reduction(ConstView data, std::size_t first, std::uint64_t iteration) const;
  // Whether `output` is what an operation gives to `rank`, where each rank has `share` elements, if
  // the operation has shares. A message goes from rank 0 to rank 1 and back.
  bool is_output(Collective operation, ConstView output, std::size_t share, int rank,
                 std::uint64_t iteration, int root = 0) const;
  // A mean over other than a power of two ranks is rounded, and a product of many factors may
  // overflow: they cannot be checked for equality.
  bool reduction_is_exact() const { return exact_; }

 private:
  using Table = std::vector<std::byte>;  // Two periods of elements.

  static std::size_t phase(std::size_t first, int rank, std::uint64_t iteration);
  Table encode(const std::array<std::int64_t, kPeriod>& values, int divisor) const;
  bool equals(ConstView data, const Table& table, std::size_t phase) const;

  DType dtype_;
  int ranks_;
  std::size_t element_bytes_;
  bool exact_ = true;
  Table inputs_;
  Table reductions_;
};

// The buffers of one rank, in elements.
struct Shape {
  std::size_t input = 0;
  std::size_t output = 0;
  std::size_t share = 0;  // Of each rank, where there are shares.
  std::size_t bytes = 0;  // Of the larger side: what a line is about.
};

// Returns one of about `bytes`, in elements of `element_bytes`. Where every rank has a share, it
// is at least one element and the same for all; then the shape's own bytes say how many there
// really are.
Shape shape_of(Collective operation, int ranks, std::size_t bytes, std::size_t element_bytes);

// What algorithm bandwidth is multiplied by to compare with the speed of the links, whatever the
// number of ranks; as in nccl-tests. 0 for a barrier.
double bus_factor(Collective operation, int ranks);

// Whether the output is the input, if nobody says otherwise: for what has the same bytes on both
// sides.
bool usually_in_place(Collective operation);

}  // namespace stretto::bench

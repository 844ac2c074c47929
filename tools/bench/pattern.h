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

// The numbers that the ranks write to their inputs, and the outputs that must follow. They are
// small whole numbers, so that every dtype holds them and their reduction exactly, in whichever
// order. They differ between ranks and between iterations, so that old output is not taken for a
// result. They repeat every kPeriod elements, so that writing them costs no more than a copy.
// kPeriod is a prime, so that data shifted by a power of two, above all another rank's share, is
// noticed.
class Pattern {
 public:
  static constexpr std::size_t kPeriod = 251;

  Pattern(DType dtype, ReduceOp op, int ranks);

  // Writes elements [first, first + target.count) of the input of `rank` in `iteration`.
  void fill(View target, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is what fill() would write.
  bool is_input(ConstView data, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is the reduction of these elements over all ranks.
  bool is_reduction(ConstView data, std::size_t first, std::uint64_t iteration) const;
  // Whether `output` is the right output for `rank`. `share`: elements per rank, if the operation
  // has shares. For point_to_point, a message goes from rank 0 to rank 1 and back.
  bool is_output(Collective operation, ConstView output, std::size_t share, int rank,
                 std::uint64_t iteration, int root = 0) const;
  // False if results cannot be checked for equality: a mean is rounded unless the number of ranks
  // is a power of two, and a product of many factors may overflow.
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
  std::size_t share = 0;  // Elements of each rank, if the operation has shares.
  std::size_t bytes = 0;  // Bytes of the larger of the two: the size in a line.
};

// Returns a shape of about `bytes`, in elements of `element_bytes`. If the operation has shares,
// all have the same size of at least one element, and Shape::bytes may differ from `bytes`.
Shape shape_of(Collective operation, int ranks, std::size_t bytes, std::size_t element_bytes);

// The factor from algorithm bandwidth to bus bandwidth, which compares with the speed of the links
// whatever the number of ranks; as in nccl-tests. 0 for a barrier.
double bus_factor(Collective operation, int ranks);

// Whether the operation runs in place by default: all_reduce, reduce, broadcast and point_to_point.
bool usually_in_place(Collective operation);

}  // namespace stretto::bench

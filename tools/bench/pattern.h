// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"

namespace stretto::bench {

// What the ranks write to their inputs, and what must come out. Small whole numbers, so that every
// dtype holds them and their reduction exactly, whatever the order; different for each rank and
// each iteration, so that what was left from the one before is not taken for a result. The numbers
// repeat every kPeriod elements: writing them costs no more than a copy.
class Pattern {
 public:
  static constexpr std::size_t kPeriod = 256;

  Pattern(DType dtype, ReduceOp op, int ranks);

  // Elements [first, first + target.count) of what `rank` has in this iteration.
  void fill(View target, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is that.
  bool is_input(ConstView data, std::size_t first, int rank, std::uint64_t iteration) const;
  // Whether `data` is the reduction of those elements of all ranks.
  bool is_reduction(ConstView data, std::size_t first, std::uint64_t iteration) const;
  // A mean over other than a power of two ranks is rounded, and a product of many factors may
  // overflow: they cannot be checked for equality.
  bool reduction_is_exact() const { return exact_; }

 private:
  using Table = std::vector<std::byte>;  // Two periods of elements.

  static std::size_t phase(std::size_t first, int rank, std::uint64_t iteration);
  Table encode(const std::array<std::int64_t, kPeriod>& values, int divisor) const;
  bool equals(ConstView data, const Table& table, std::size_t phase) const;

  DType dtype_;
  std::size_t element_bytes_;
  bool exact_ = true;
  Table inputs_;
  Table reductions_;
};

}  // namespace stretto::bench

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// A sum of f32 vectors, of which each rank adds some: it has the same bits however the vectors are
// shared out over ranks, whatever their number, and in whatever order they are added.
//
//   ReproducibleSum sum(*communicator, weights.size());
//   for (const Sample& sample : own_samples) sum.add(gradient_of(sample));
//   const std::span<const float> mean = sum.reduce(1.0 / samples);
//
// Values are added as integers, two of 64 bits for each element: exactly, but that each value is
// first rounded to a multiple of 2^-61, to the nearest and of two to the even one. The sum is
// rounded to f64, multiplied, and rounded to f32. A value of 2^24 or more, infinity or NaN makes
// all of the sum NaN. At most 2^20 vectors, of all ranks together, which nobody counts.
//
// Takes 20 bytes for each element, and 16 more that ranks share out; to reduce moves 20/8 of the
// bytes of an all_reduce of as many f32. Threads: one at a time. The communicator must outlive it.
class ReproducibleSum {
 public:
  // Of vectors of `count` elements, the same on all ranks. Not collective. `timeout`: of each
  // operation; default: the communicator's. Throws InvalidArgument if there are more elements than
  // memory can have.
  ReproducibleSum(Communicator& communicator, std::size_t count,
                  const std::optional<Duration>& timeout = std::nullopt);

  // Adds `values` from element `first` on; elements that a vector lacks count as zeros. Does not
  // block. Throws InvalidArgument if there are not so many.
  void add(std::span<const float> values, std::size_t first = 0);

  // The sum of what all ranks have added since the last one, times `factor`; valid until the next
  // call of this object. Collective, blocks. Throws what collectives throw, and Mismatch if ranks
  // have other numbers of elements or other factors; then the sum is lost, and so are this object
  // and, unless only the factors differ, or lengths whose shares are as long, the communicator.
  std::span<const float> reduce(double factor = 1);

 private:
  Communicator& communicator_;
  const std::size_t count_;
  const std::optional<Duration> timeout_;
  bool is_representable_ = true;
  // What this rank has added (kernel/fixed_point.h), so many elements that all shares are equal;
  // and the sums of all ranks, of its share.
  Buffer<std::int64_t> high_, low_, high_sum_, low_sum_;
  Buffer<float> values_;
};

}  // namespace stretto

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

// A sum of f32 vectors, to which each rank adds some. It has the same bits however the vectors are
// distributed over ranks, however many ranks there are, and in whatever order the vectors are
// added.
//
//   ReproducibleSum sum(*communicator, weights.size());
//   for (const Sample& sample : own_samples) sum.add(gradient_of(sample));
//   const std::span<const float> mean = sum.reduce(1.0 / samples);
//
// Each value is rounded to a multiple of 2^-61 (to nearest, ties to even). These are added exactly,
// as two 64-bit integers for each element. The sum is rounded to f64, multiplied, and rounded to
// f32. If any value is infinity, NaN or of magnitude 2^24 or more, the whole sum is NaN. All ranks
// together may add at most 2^20 vectors; this is not checked.
//
// A rank needs 20 bytes for each element, and its share of 16 more. reduce() moves 20/8 of the
// bytes of an all_reduce of as many f32. Threads: one at a time. The communicator must outlive it.
class ReproducibleSum {
 public:
  // For vectors of `count` elements, the same on all ranks. Not collective. `timeout` bounds each
  // operation; default: the communicator's. Throws InvalidArgument if no memory can hold so many
  // elements.
  ReproducibleSum(Communicator& communicator, std::size_t count,
                  const std::optional<Duration>& timeout = std::nullopt);

  // Adds `values` to the elements from `first` on; other elements count as zeros. Does not block.
  // Throws InvalidArgument if `values` go beyond the last element.
  void add(std::span<const float> values, std::size_t first = 0);

  // Returns `factor` times the sum of what all ranks have added since the last call; valid until
  // the next call of this object. Collective, blocks. Throws what collectives throw, and Mismatch
  // if ranks have different counts or factors. Then the sum is lost, and this object cannot be used
  // again. The communicator has then failed, too, unless only the factors differ, or counts whose
  // shares are equally long.
  std::span<const float> reduce(double factor = 1);

 private:
  Communicator& communicator_;
  const std::size_t count_;
  const std::optional<Duration> timeout_;
  bool is_representable_ = true;
  // What this rank has added (kernel/fixed_point.h), padded so that all shares are equal; and, for
  // this rank's share, the sums over all ranks.
  Buffer<std::int64_t> high_, low_, high_sum_, low_sum_;
  Buffer<float> values_;
};

}  // namespace stretto

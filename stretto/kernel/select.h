// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernel {

// The magnitude of a float as an integer with the same order. Infinity is above all numbers, NaN
// above infinity.
inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF;
}
inline constexpr std::uint32_t kInfinityBits = 0x7F800000;

// All functions are vector loops with the same result on every SIMD target. Spans of one call have
// the same length, below 2^32, unless a comment says otherwise, and do not overlap. The functions
// never allocate and never block; any thread.

struct Found {
  std::size_t count = 0;       // Matching elements, including those that did not fit.
  std::uint32_t greatest = 0;  // The greatest magnitude_bits() of all elements.
};

// Takes the elements whose magnitude_bits() are at least `limit` out of `values`, as far as there
// is room. Their indices, in ascending order, go to `indices` and their values to `taken`; these
// two have the same length. The elements become zero in `values`.
Found take_at_least(std::span<float> values, std::uint32_t limit, std::span<std::uint32_t> indices,
                    std::span<float> taken);

// The same on the sums, after `sums[i] += addends[i]`.
Found add_and_take_at_least(std::span<float> sums, std::span<const float> addends,
                            std::uint32_t limit, std::span<std::uint32_t> indices,
                            std::span<float> taken);

// Keeps the taken elements that reach `limit`, at the front of both spans, and puts the others
// back: to[indices[j]] = taken[j]. Returns the number of kept elements.
std::size_t keep_at_least(std::span<std::uint32_t> indices, std::span<float> taken,
                          std::uint32_t limit, std::span<float> to);

// Writes the magnitude_bits() of `values` that lie in [least, greatest] to the front of `to`, and
// returns their number. `to` must have room for kSpareMagnitudes more, because whole vectors are
// stored.
inline constexpr std::size_t kSpareMagnitudes = 16;
std::size_t magnitudes_between(std::span<const float> values, std::uint32_t least,
                               std::uint32_t greatest, std::span<std::uint32_t> to);

// Counts the elements for each value of the upper 12 of the 31 bits of magnitude. `counts` has
// kMagnitudeBins elements, which are overwritten.
inline constexpr unsigned kMagnitudeBinBits = 12;
inline constexpr std::size_t kMagnitudeBins = std::size_t{1} << kMagnitudeBinBits;
inline constexpr unsigned kMagnitudeBinShift = 31 - kMagnitudeBinBits;
void count_magnitudes(std::span<const float> values, std::span<std::uint32_t> counts);

}  // namespace stretto::kernel

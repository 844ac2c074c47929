// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernel {

// The magnitude of a float as an integer that is ordered as magnitudes are: infinity above all
// numbers, NaN above infinity.
inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF;
}
inline constexpr std::uint32_t kInfinityBits = 0x7F800000;

// All of these are vector loops with the same result on every SIMD target. Spans of one call have
// the same length, below 2^32, but for `to`, and do not overlap. Never allocate, never block; any
// thread.

struct Found {
  std::size_t count = 0;       // Of the elements that were looked for, more than fit included.
  std::uint32_t greatest = 0;  // The magnitude_bits() of all elements.
};

// Takes the elements whose magnitude_bits() are at least `limit` out of `values`, as far as there
// is room: their indices, ascending, and what they were come to `indices` and `taken`, which are
// equally long, and zero stands where they were.
Found take_at_least(std::span<float> values, std::uint32_t limit, std::span<std::uint32_t> indices,
                    std::span<float> taken);

// The same of the sums, after `sums[i] += addends[i]`.
Found add_and_take_at_least(std::span<float> sums, std::span<const float> addends,
                            std::uint32_t limit, std::span<std::uint32_t> indices,
                            std::span<float> taken);

// Of what has been taken: what reaches `limit` stays, at the front of both spans; the others come
// back, to[indices[j]] = taken[j]. Returns how many stay.
std::size_t keep_at_least(std::span<std::uint32_t> indices, std::span<float> taken,
                          std::uint32_t limit, std::span<float> to);

// The magnitude_bits() of `values` that are from `least` to `greatest` come to the front of `to`,
// which has room for kSpareMagnitudes more: whole vectors are stored. Returns how many they are.
inline constexpr std::size_t kSpareMagnitudes = 16;
std::size_t magnitudes_between(std::span<const float> values, std::uint32_t least,
                               std::uint32_t greatest, std::span<std::uint32_t> to);

// How many elements have each value of the upper 12 of their 31 bits of magnitude. `counts` has
// kMagnitudeBins elements, which are overwritten.
inline constexpr unsigned kMagnitudeBinBits = 12;
inline constexpr std::size_t kMagnitudeBins = std::size_t{1} << kMagnitudeBinBits;
inline constexpr unsigned kMagnitudeBinShift = 31 - kMagnitudeBinBits;
void count_magnitudes(std::span<const float> values, std::span<std::uint32_t> counts);

}  // namespace stretto::kernel

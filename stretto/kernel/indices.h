// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernel {

// All functions are vector loops with the same result on every SIMD target. They never allocate and
// never block; any thread.

// Finds the ones of a bitmap: bit b of word w gives the place `first` + 64 * w + b. Places are in
// ascending order; those beyond the size of `places` are dropped. `words` are words of 8 bytes,
// little endian, of any alignment. Returns the number of ones, including dropped ones.
std::size_t find_ones(std::span<const std::byte> words, std::uint32_t first,
                      std::span<std::uint32_t> places);

// Converts places in the upper half of an Elias-Fano code to indices. places[i] belongs to number j
// = first + i. It becomes (places[i] - j) << low_bits | (the low_bits bits of `lows` from bit j *
// low_bits on). `first` must be a multiple of 8, and `low_bits` at most 31; at least 8 more bytes
// must follow these bits in `lows`.
void join_low_bits(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
                   std::span<std::uint32_t> places);

// Whether each value is greater than the one before it.
bool are_ascending(std::span<const std::uint32_t> values);

}  // namespace stretto::kernel

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernel {

// All of these are vector loops with the same result on every SIMD target. Never allocate, never
// block; any thread.

// Where the ones of a bitmap are: bit b of word w at `first` + 64 * w + b, ascending, as far as
// there is room. `words` are of 8 bytes, little endian, and need not be aligned. Returns how many
// ones there are, more than fit included.
std::size_t find_ones(std::span<const std::byte> words, std::uint32_t first,
                      std::span<std::uint32_t> places);

// Makes indices of places in the upper half of Elias-Fano form: places[i], number j = first + i of
// all, becomes (places[i] - j) << low_bits | the low_bits bits of `lows` from bit j * low_bits on.
// `first` is a multiple of 8, low_bits at most 31; at least 8 bytes of `lows` follow these bits.
void join_low_bits(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
                   std::span<std::uint32_t> places);

// Whether each value is greater than the one before it.
bool are_ascending(std::span<const std::uint32_t> values);

}  // namespace stretto::kernel

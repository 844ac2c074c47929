// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stretto/base/dtype.h"

namespace stretto::kernel {

// How a number goes to one of the two that can be said: to the nearer one, or to either of them
// with the odds that make it right on average. The draw depends on the key and on the index alone,
// so a run can be repeated.
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0;
};

// All of these are vector loops with the same result on every SIMD target. Spans do not overlap;
// fewer than 2^32 elements. Never allocate, never block; any thread.

// Numbers of 16 bits, the nearest, ties to even: f16 or bf16.
//
// In: values. Out: what the codes do not say of them, which is exact. Finite values beyond `limit`,
// which must be a finite number of the type, are said as that with their sign; infinity and NaN are
// said as they are, and leave NaN. `codes` has an element for each value.
void quantize_half(DType dtype, std::span<float> values, float limit,
                   std::span<std::uint16_t> codes);
// sums[i] += code.
void add_half(DType dtype, std::span<const std::uint16_t> codes, std::span<float> sums);

// Numbers of 8 bits with a scale for each block, a power of two: a value is code * scale.
//
// In: values. Out: what the codes do not say of them, which to the nearest is exact: value - code *
// scale is a float. With stochastic rounding it is right to half a unit of its last place, at most
// 2^-25 scale. The greatest of a block may lack up to half a scale more, as codes end at 127; there
// stochastic rounding takes twice the scale, if floats have that. Infinity and NaN get the code
// -128, which means NaN, and leave zero.
inline constexpr std::size_t kInt8Block = 256;
constexpr std::size_t int8_blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}
// `codes` has an element for each value, `scales` one for each block: the exponent of the scale,
// with the bias of a float, from 1 to 248.
void quantize_int8(std::span<float> values, const Rounding& rounding, std::span<std::int8_t> codes,
                   std::span<std::uint8_t> scales);
// sums[i] += code * scale. Any bytes have a meaning: see above; scales are taken as 0 to 248.
void add_int8(std::span<const std::int8_t> codes, std::span<const std::uint8_t> scales,
              std::span<float> sums);

// One bit each with a scale for each block: a value is scale, or -scale where the bit is set.
// To the nearest the scale is the mean magnitude of the block, otherwise its greatest one. (The
// mean, too, where that is below 2^-125 or above 2^127.)
//
// In: values. Out: value - what is said, rounded as every difference of floats is. A block with
// infinity or NaN gets the scale NaN and leaves zeros.
inline constexpr std::size_t kOneBitBlock = 512;
constexpr std::size_t one_bit_blocks(std::size_t count) {
  return (count + kOneBitBlock - 1) / kOneBitBlock;
}
constexpr std::size_t one_bit_words(std::size_t count) { return (count + 63) / 64; }
// `signs` has one_bit_words(count) elements, the bit of the first value lowest; unused bits are
// zero.
void quantize_one_bit(std::span<float> values, const Rounding& rounding,
                      std::span<std::uint64_t> signs, std::span<float> scales);
void add_one_bit(std::span<const std::uint64_t> signs, std::span<const float> scales,
                 std::span<float> sums);

}  // namespace stretto::kernel

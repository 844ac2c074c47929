// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stretto/base/dtype.h"

namespace stretto::kernel {

// How a number between two representable ones is rounded: to the nearer one, or at random to either
// of them, with probabilities that make the result right on average. The random number depends on
// `key` and the index alone, so a run can be repeated.
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0;
};

// All functions are vector loops with the same result on every SIMD target. Spans must not overlap
// and must have fewer than 2^32 elements. The functions never allocate and never block; any thread.

// Codes of 16 bits, f16 or bf16, rounded to nearest, ties to even.
//
// `values` holds the values on entry, and on return the residuals value - code, which are exact. A
// finite value beyond `limit`, a finite number of the type, is encoded as `limit` with the sign of
// the value. Infinity and NaN are encoded unchanged, and their residual is NaN. `codes` has one
// element per value.
void quantize_half(DType dtype, std::span<float> values, float limit,
                   std::span<std::uint16_t> codes);
// sums[i] += code.
void add_half(DType dtype, std::span<const std::uint16_t> codes, std::span<float> sums);

// Codes of 8 bits, with a scale for each block: a power of two. A value is code * scale.
//
// `values` holds the values on entry, and on return the residuals value - code * scale. With
// rounding to nearest they are exact. With stochastic rounding their error is at most half a unit
// in the last place, and at most 2^-25 * scale. Codes end at 127, so the greatest residuals of a
// block may be up to half a scale larger; stochastic rounding then uses twice the scale, if it is a
// float. Infinity and NaN get the code -128, which means NaN; their residual is zero.
inline constexpr std::size_t kInt8Block = 256;
constexpr std::size_t int8_blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}
// `codes` has one element per value. `scales` has one element per block: the exponent of the scale,
// with the bias of a float, from 1 to 248.
void quantize_int8(std::span<float> values, const Rounding& rounding, std::span<std::int8_t> codes,
                   std::span<std::uint8_t> scales);
// sums[i] += code * scale. All bytes are valid: code -128 means NaN, and a scale above 248 counts
// as 248.
void add_int8(std::span<const std::int8_t> codes, std::span<const std::uint8_t> scales,
              std::span<float> sums);

// Codes of one bit, with a scale for each block: a value is scale, or -scale if the bit is set.
// With rounding to nearest, the scale is the mean magnitude of the block. With stochastic rounding
// it is the greatest magnitude, or the mean one if the greatest is below 2^-125, or at or above
// 2^127.
//
// `values` holds the values on entry, and on return the differences value - (decoded value),
// rounded as floats. A block with infinity or NaN gets the scale NaN, and its differences are zero.
inline constexpr std::size_t kOneBitBlock = 512;
constexpr std::size_t one_bit_blocks(std::size_t count) {
  return (count + kOneBitBlock - 1) / kOneBitBlock;
}
constexpr std::size_t one_bit_words(std::size_t count) { return (count + 63) / 64; }
// `signs` has one_bit_words(count) elements. The lowest bit is that of the first value; unused bits
// are zero.
void quantize_one_bit(std::span<float> values, const Rounding& rounding,
                      std::span<std::uint64_t> signs, std::span<float> scales);
void add_one_bit(std::span<const std::uint64_t> signs, std::span<const float> scales,
                 std::span<float> sums);

}  // namespace stretto::kernel

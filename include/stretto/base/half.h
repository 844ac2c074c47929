// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cstdint>

namespace stretto {

// IEEE 754 binary16 and bfloat16, as they lie in memory. They are made from a float, rounded to
// nearest (ties to even), or from bits. They have no arithmetic: the kernel converts whole vectors,
// much faster than these conversions do one number at a time.
struct Half {
  std::uint16_t bits = 0;

  constexpr Half() = default;
  constexpr explicit Half(float value);
  static constexpr Half from_bits(std::uint16_t bits) {
    Half half;
    half.bits = bits;
    return half;
  }
  constexpr explicit operator float() const;
  // Compares bits: NaN equals itself, zero does not equal minus zero.
  friend bool operator==(Half, Half) = default;
};

struct BFloat16 {
  std::uint16_t bits = 0;

  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value);
  static constexpr BFloat16 from_bits(std::uint16_t bits) {
    BFloat16 number;
    number.bits = bits;
    return number;
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
  friend bool operator==(BFloat16, BFloat16) = default;
};

// Floating point of 8 bits, named by the bits of exponent and mantissa. It can be moved, but not
// reduced: a sum of a few ranks overflows it or loses most of its digits. Nothing here computes
// with it, so it is made from bits only. f8_e4m3 has no infinity (PyTorch calls it float8_e4m3fn);
// f8_e5m2 is the upper half of an f16.
struct Float8E4M3 {
  std::uint8_t bits = 0;

  constexpr Float8E4M3() = default;
  static constexpr Float8E4M3 from_bits(std::uint8_t bits) {
    Float8E4M3 number;
    number.bits = bits;
    return number;
  }
  friend bool operator==(Float8E4M3, Float8E4M3) = default;
};

struct Float8E5M2 {
  std::uint8_t bits = 0;

  constexpr Float8E5M2() = default;
  static constexpr Float8E5M2 from_bits(std::uint8_t bits) {
    Float8E5M2 number;
    number.bits = bits;
    return number;
  }
  friend bool operator==(Float8E5M2, Float8E5M2) = default;
};

constexpr Half::Half(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = wide >> 16 & 0x8000;
  const std::uint32_t magnitude = wide & 0x7fffffff;
  // Drops `shift` bits, rounding to nearest (ties to even). A carry into the exponent is right.
  const auto shifted = [](std::uint32_t number, std::uint32_t shift) {
    return (number + (1u << (shift - 1)) - 1 + (number >> shift & 1)) >> shift;
  };
  std::uint32_t narrow = 0;
  if (magnitude > 0x7f800000) {
    narrow = 0x7e00 | (magnitude >> 13 & 0x3ff);  // A quiet NaN.
  } else if (magnitude >= 0x47800000) {           // 2^16.
    narrow = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14: the smallest normal number.
    narrow = shifted(magnitude - (112u << 23), 13);
  } else if (magnitude >= 0x33000000) {  // 2^-25: half of the smallest denormal.
    narrow = shifted((magnitude & 0x7fffff) | 0x800000, 126 - (magnitude >> 23));
  }
  bits = static_cast<std::uint16_t>(sign | narrow);
}

constexpr Half::operator float() const {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = bits >> 10 & 31;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

constexpr BFloat16::BFloat16(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (wide & 0x7fffffff) > 0x7f800000;
  const std::uint32_t rounded = wide + 0x7fff + (wide >> 16 & 1);
  bits = static_cast<std::uint16_t>((is_nan ? wide | 0x400000 : rounded) >> 16);
}

}  // namespace stretto

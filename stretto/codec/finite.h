// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace stretto::codec {

inline bool are_finite(std::span<const float> values) {
  std::int32_t greatest = 0;  // Magnitude. Infinity and NaN have the greatest ones.
  for (const float value : values) {
    greatest = std::max(greatest, std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF);
  }
  return greatest < std::bit_cast<std::int32_t>(std::numeric_limits<float>::infinity());
}

inline void clear_non_finite(std::span<float> values) {
  for (float& value : values) value = std::isfinite(value) ? value : 0.0f;
}

}  // namespace stretto::codec

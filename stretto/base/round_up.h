// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// Size of a cache line. Data that different ranks or threads write at the same time lie in
// different lines.
inline constexpr std::size_t kCacheLineBytes = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace stretto

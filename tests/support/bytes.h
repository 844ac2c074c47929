// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace stretto {

using Bytes = std::vector<std::byte>;

// std::equal asks byte by byte, and a sanitizer at each: most of what tests of large buffers took.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace stretto

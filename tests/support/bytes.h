// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace stretto {

using Bytes = std::vector<std::byte>;

// Whether `a` and `b` are equal. std::equal compares single bytes, each checked by a sanitizer; it
// used to take most of the time of tests with large buffers.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace stretto

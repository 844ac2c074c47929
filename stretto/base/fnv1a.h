// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string_view>

namespace stretto {

// FNV-1a: a hash of texts. It does not protect against deliberate collisions. `before` is the hash
// of the preceding bytes.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t before = 0xcbf29ce484222325u) {
  std::uint64_t hash = before;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/shares.h"

#include <numeric>

namespace stretto::execution {

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// FNV-1a, a word at a time, with a last mix because words differ in few bits.
std::uint64_t layout_hash(std::span<const std::size_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::size_t count : counts) {
    hash = (hash ^ count) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace stretto::execution

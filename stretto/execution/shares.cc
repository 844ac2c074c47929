// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/shares.h"

#include <numeric>

#include "stretto/base/fnv1a.h"

namespace stretto::execution {

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::uint64_t layout_hash(std::span<const std::size_t> counts) {
  const std::uint64_t hash =
      fnv1a({reinterpret_cast<const char*>(counts.data()), counts.size_bytes()});
  return hash == 0 ? 1 : hash;
}

}  // namespace stretto::execution

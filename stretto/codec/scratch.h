// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/codec/codec.h"

namespace stretto::codec {

// Returns the first `count` elements of `vector`, which grows if it has fewer.
template <class T>
std::span<T> room(std::vector<T>& vector, std::size_t count) {
  if (vector.size() < count) vector.resize(count);
  return std::span(vector).first(count);
}

// Puts the first `count` elements of the scratch back to their places in `carry`.
inline void put_back(std::span<float> carry, const Scratch& scratch, std::size_t count) {
  for (std::size_t j = 0; j < count; ++j) carry[scratch.indices[j]] = scratch.values[j];
}

}  // namespace stretto::codec

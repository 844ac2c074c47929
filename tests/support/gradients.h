// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stretto/reducer/reducer.h"

namespace stretto::testing {

// A gradient of f32.
inline std::span<float> floats(const Reducer& reducer, std::size_t index) {
  const auto bytes = reducer.gradient_bytes(index);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

inline std::vector<GradientDescription> three_gradients() {
  return {{"a", DType::f32, 100}, {"b", DType::f32, 3}, {"c", DType::f32, 1000}};
}

}  // namespace stretto::testing

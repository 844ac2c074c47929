// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"

namespace stretto::testing {

// Returns the elements of an f32 gradient.
inline std::span<float> floats(const Reducer& reducer, std::size_t index) {
  const auto bytes = reducer.gradient_bytes(index);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

inline std::vector<float> copy_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

inline std::shared_ptr<CompressedReduction> compressing(CompressionOptions options = {}) {
  return std::make_shared<CompressedReduction>(std::move(options));
}

inline std::vector<GradientDescription> three_gradients() {
  return {{"a", DType::f32, 100}, {"b", DType::f32, 3}, {"c", DType::f32, 1000}};
}

}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>

#include <ATen/core/Tensor.h>

namespace stretto {

// GradientDescription::rows of a parameter, whose gradient lies in memory as the parameter does, or
// row by row if that has gaps: the size of the dimension whose elements lie farthest apart. 0: it
// has fewer than two dimensions.
inline std::size_t rows_in_memory(const at::Tensor& tensor) {
  if (tensor.dim() < 2) return 0;
  if (!tensor.is_non_overlapping_and_dense()) return static_cast<std::size_t>(tensor.size(0));
  const at::IntArrayRef strides = tensor.strides();
  const auto outermost = std::ranges::max_element(strides) - strides.begin();
  return static_cast<std::size_t>(tensor.size(outermost));
}

}  // namespace stretto

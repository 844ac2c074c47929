// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/gradient_description.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "stretto/torch_device/scalar_type.h"

namespace stretto::ddp {
namespace {

// The rows of a tensor as a matrix; 0 if it has fewer than two dimensions.
std::size_t rows_in_memory(const at::Tensor& tensor) {
  if (tensor.dim() < 2) return 0;
  if (!tensor.is_non_overlapping_and_dense()) return static_cast<std::size_t>(tensor.size(0));
  const at::IntArrayRef strides = tensor.strides();
  const auto outermost = std::ranges::max_element(strides) - strides.begin();
  return static_cast<std::size_t>(tensor.size(outermost));
}

}  // namespace

Result<DType> dtype_of_tensor(const at::Tensor& tensor) {
  const c10::ScalarType type = tensor.scalar_type();
  if (const std::optional<DType> dtype = dtype_of_scalar_type(type)) return *dtype;
  return Status(
      StatusCode::invalid_argument,
      std::string("tensors of type ") + c10::toString(type) + " cannot be moved or reduced");
}

GradientDescription description_of(const std::string& name, const at::Tensor& parameter) {
  return {.name = name,
          .dtype = dtype_of_tensor(parameter).or_throw(),
          .count = static_cast<std::size_t>(parameter.numel()),
          .rows = rows_in_memory(parameter)};
}

}  // namespace stretto::ddp

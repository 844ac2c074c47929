// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/tensor_bytes.h"

#include <cstddef>
#include <string>
#include <utility>

namespace stretto::ddp {

Result<DType> dtype_of_tensor(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kByte:
      return DType::u8;
    case torch::kChar:
      return DType::i8;
    case torch::kInt:
      return DType::i32;
    case torch::kLong:
      return DType::i64;
    case torch::kHalf:
      return DType::f16;
    case torch::kBFloat16:
      return DType::bf16;
    case torch::kFloat:
      return DType::f32;
    case torch::kDouble:
      return DType::f64;
    case torch::kBool:
      return DType::boolean;
    default:
      return Status(StatusCode::invalid_argument, std::string("tensors of type ") +
                                                      c10::toString(tensor.scalar_type()) +
                                                      " cannot be reduced");
  }
}

TensorBytes::TensorBytes(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (torch::Tensor& tensor : tensors_) {
    tensor = tensor.detach();
    blocks_.push_back(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
    spans_.emplace_back(static_cast<std::byte*>(blocks_.back().data_ptr()),
                        blocks_.back().nbytes());
  }
}

void TensorBytes::write_back() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_same(blocks_[i])) tensors_[i].copy_(blocks_[i]);
  }
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/tensor_bytes.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "stretto/torch/scalar_type.h"

namespace stretto::ddp {

Result<DType> dtype_of_tensor(const torch::Tensor& tensor) {
  const torch::ScalarType type = tensor.scalar_type();
  if (const std::optional<DType> dtype = dtype_of_scalar_type(type)) return *dtype;
  return Status(
      StatusCode::invalid_argument,
      std::string("tensors of type ") + c10::toString(type) + " cannot be moved or reduced");
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& item : named) tensors.push_back(item.tensor);
  return tensors;
}

namespace {

// Whether the bytes of the tensor's memory are its elements, in some order, and can be read here.
// A lazy conjugate or negative is not what its memory says.
bool is_block(const torch::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
         !tensor.is_neg();
}

}  // namespace

TensorBytes::TensorBytes(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (torch::Tensor& tensor : tensors_) {
    tensor = tensor.detach();
    blocks_.push_back(is_block(tensor) ? tensor
                                       : tensor.cpu().resolve_conj().resolve_neg().contiguous());
    spans_.emplace_back(static_cast<std::byte*>(blocks_.back().data_ptr()),
                        blocks_.back().nbytes());
  }
}

View TensorBytes::view(std::size_t index) const {
  const torch::Tensor& tensor = tensors_[index];
  return {spans_[index].data(), static_cast<std::size_t>(tensor.numel()),
          dtype_of_tensor(tensor).or_throw()};
}

void TensorBytes::write_back() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_same(blocks_[i])) tensors_[i].copy_(blocks_[i]);
  }
}

}  // namespace stretto::ddp

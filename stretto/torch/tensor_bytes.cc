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
    case torch::kShort:
      return DType::i16;
    case torch::kUInt16:
      return DType::u16;
    case torch::kUInt32:
      return DType::u32;
    case torch::kUInt64:
      return DType::u64;
    case torch::kComplexFloat:
      return DType::c64;
    case torch::kComplexDouble:
      return DType::c128;
    case torch::kFloat8_e4m3fn:
      return DType::f8_e4m3;
    case torch::kFloat8_e5m2:
      return DType::f8_e5m2;
    default:
      return Status(StatusCode::invalid_argument, std::string("tensors of type ") +
                                                      c10::toString(tensor.scalar_type()) +
                                                      " cannot be moved or reduced");
  }
}

namespace {

// Whether the bytes of the tensor's memory are its elements, in some order. A lazy conjugate or
// negative is not what its memory says.
bool is_block(const torch::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

TensorBytes::TensorBytes(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (torch::Tensor& tensor : tensors_) {
    tensor = tensor.detach();
    blocks_.push_back(is_block(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous());
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

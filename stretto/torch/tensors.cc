// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/tensors.h"

#include "stretto/base/refuse.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/gradient_description.h"

namespace stretto {

View view_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse("the tensor is undefined");
  if (!tensor.device().is_cpu())
    refuse("the tensor is on {}, not on the CPU", tensor.device().str());
  if (tensor.layout() != torch::kStrided) refuse("the tensor is not dense; see all_reduce_rows()");
  if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg()) {
    refuse("the tensor does not fill its memory; use tensor.contiguous()");
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          ddp::dtype_of_tensor(tensor).or_throw()};
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <unordered_set>
#include <vector>

#include <torch/torch.h>

namespace stretto::ddp {

// Each tensor once, where it comes first.
inline std::vector<torch::Tensor> distinct(std::vector<torch::Tensor> tensors) {
  std::unordered_set<const void*> seen;
  std::erase_if(tensors, [&](const torch::Tensor& tensor) {
    return !seen.insert(tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

}  // namespace stretto::ddp

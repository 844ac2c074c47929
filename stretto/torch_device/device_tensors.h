// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

#include <torch/torch.h>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/torch_device/scalar_type.h"

namespace stretto::ddp {

// A vector on the memory of `view`, which it does not keep alive.
inline torch::Tensor tensor_of(const ConstView& view, c10::Device device) {
  return at::for_blob(const_cast<std::byte*>(view.data), {static_cast<std::int64_t>(view.count)})
      .options(torch::TensorOptions().dtype(scalar_type_of(view.dtype)).device(device))
      .target_device(device)
      .make_tensor();
}
inline torch::Tensor tensor_of(ConstByteSpan bytes, c10::Device device) {
  return tensor_of({bytes.data(), bytes.size(), DType::u8}, device);
}

inline torch::Tensor part_of(const torch::Tensor& vector, std::size_t first, std::size_t count) {
  return vector.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
}

// Throws PyTorch's failures as stretto's, which end the step on all ranks.
template <class Act>
void on_device(const Act& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    status_of(StatusCode::system, "a bucket on a device: {}", error.what_without_backtrace())
        .or_throw();
  }
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Memory of the device from Communicator::allocate_bytes(), which throws InvalidArgument while a
// graph captures the calling thread's current stream. If the device has too little memory left,
// PyTorch's allocator frees what it caches, and the allocation is tried once more.
Memory allocate_on(c10::Device device, Communicator& communicator, std::size_t bytes);

// Whether all tensors are on the device of `communicator`, in memory that its operations take or
// copy from.
bool are_of(const Communicator& communicator, const std::vector<at::Tensor>& tensors);
// The same, and whether it reduces them there, too; it does not reduce types of one byte.
bool are_reduced_by(const Communicator& communicator, const std::vector<at::Tensor>& tensors);

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include <c10/core/Device.h>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Memory of the device from Communicator::allocate_bytes(), which throws InvalidArgument while a
// graph captures the calling thread's current stream. Where the device has too little left, PyTorch
// gives back what its allocator keeps for later, and it is tried once more.
Memory allocate_on(c10::Device device, Communicator& communicator, std::size_t bytes);

}  // namespace stretto

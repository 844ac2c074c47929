// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/device_allocation.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "stretto/base/error.h"
#include "stretto/base/stream_guard.h"
#include "stretto/torch/streams.h"

namespace stretto {
namespace {

// Whether PyTorch may have given anything back.
bool empty_cache(c10::DeviceType type) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
  if (allocator == nullptr || !allocator->initialized()) return false;
  allocator->emptyCache();
  return true;
}

}  // namespace

Memory allocate_on(c10::Device device, Communicator& communicator, std::size_t bytes) {
  const StreamGuard of_caller(current_stream(device).native_handle());
  try {
    return communicator.allocate_bytes(bytes, device.index());
  } catch (const OutOfMemory&) {
    if (!empty_cache(device.type())) throw;
  }
  return communicator.allocate_bytes(bytes, device.index());
}

}  // namespace stretto

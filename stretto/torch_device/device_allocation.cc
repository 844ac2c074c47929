// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/device_allocation.h"

#include <algorithm>

#include <c10/core/CachingDeviceAllocator.h>

#include "stretto/base/error.h"
#include "stretto/base/stream_guard.h"
#include "stretto/torch_device/streams.h"

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

// The address of a tensor's memory tells the kind of its device.
bool are_of(const Communicator& communicator, const std::vector<at::Tensor>& tensors) {
  return communicator.device().has_value() &&
         std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
           return !tensor.device().is_cpu() && tensor.device().index() == *communicator.device() &&
                  (tensor.numel() == 0 ||
                   communicator.device_of(tensor.const_data_ptr()).has_value());
         });
}

bool are_reduced_by(const Communicator& communicator, const std::vector<at::Tensor>& tensors) {
  return are_of(communicator, tensors) &&
         std::ranges::none_of(tensors, [](const auto& each) { return each.element_size() == 1; });
}

}  // namespace stretto

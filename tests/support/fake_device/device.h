// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

// A device of PyTorch's ("fake_device") for tests, on the double of a driver that fake_nccl has,
// in the way of PyTorch's devices that are extensions: an allocator, a guard with streams and
// events, and the few operators that others are made of. It is loaded, and finds the double by
// STRETTO_CUDA_DRIVER. What it shows is what stretto does with such a device, by PyTorch's own
// interface; nothing of CUDA is in it.
//
// It is as strict as the double: the host cannot touch its memory, all that writes there does so
// later, on the calling thread's current stream, and memory that is freed is overwritten by the
// stream that it was allocated on.
namespace stretto::fake_device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// Of the calling thread.
c10::Device current_device();
c10::Stream current_stream(c10::Device device);

// Where the double's streams reach memory of a device.
std::byte* reach(const void* data);
// Behind what is on the stream already.
void enqueue(const c10::Stream& stream, std::function<void()> work);
// Until all that is on the stream has been done.
void synchronize(const c10::Stream& stream);

}  // namespace stretto::fake_device

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

// A PyTorch device ("fake_device") for tests, on the double of a driver in fake_nccl. Like other
// devices that extend PyTorch, it has an allocator, a guard with streams and events, and the few
// operators that others are made of. It is loaded at run time, and finds the double by
// STRETTO_CUDA_DRIVER. Tests with it show how stretto uses such a device, by PyTorch's own
// interface; it contains nothing of CUDA.
//
// It is as strict as the double: the host cannot touch its memory, all writes to it happen later,
// on the calling thread's current stream, and freed memory is overwritten by the stream that it was
// allocated on.
namespace stretto::fake_device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// The calling thread's current device and stream.
c10::Device current_device();
c10::Stream current_stream(c10::Device device);

// Returns where the double's streams access memory of a device.
std::byte* reach(const void* data);
// Runs `work` on the stream, behind its earlier work.
void enqueue(const c10::Stream& stream, std::function<void()> work);
// Waits until the stream has done its work so far.
void synchronize(const c10::Stream& stream);

}  // namespace stretto::fake_device

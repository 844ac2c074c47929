// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <utility>

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

// Order on devices of any kind, by PyTorch's generic streams and events.
namespace stretto {

// Whether tensors on `device` have addresses and are no mere handles.
inline bool has_addresses(c10::Device device) {
  return device.is_cuda() || device.is_privateuseone();
}

inline c10::Stream default_stream(c10::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getDefaultStream(device);
}

// The stream that the calling thread uses now.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

// Whether a graph of the device captures `stream`. False before PyTorch 2.13, where only the
// device's own library knows: a capture then fails with that library's message.
inline bool is_captured(const c10::Stream& stream) {
  const auto ask = [&](const auto& device) {
    if constexpr (requires { device.isStreamCapturing(stream); }) {
      return device.isStreamCapturing(stream);
    } else {
      return false;
    }
  };
  return ask(*c10::impl::getDeviceGuardImpl(stream.device_type()));
}

// A stream that does not wait for the default stream by itself, from the few that the process
// shares.
inline c10::Stream new_stream(c10::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStreamFromGlobalPool(device);
}

// An event of a device. It makes the device the thread's current one while it is used. PyTorch does
// so, too, but then makes the device from before current again, on which CUDA gives the process a
// context if it has none: that would be GPU 0 on all ranks.
class DeviceEvent {
 public:
  explicit DeviceEvent(c10::Device device)
      : device_(device), event_(std::in_place, device.type()) {}
  DeviceEvent(DeviceEvent&&) = default;
  ~DeviceEvent() {
    try {
      const c10::DeviceGuard there(device_);
      event_.reset();
    } catch (const c10::Error&) {  // The device has failed; its next user is told.
    }
  }

  // From now on, stands for the work that is on `stream` now.
  void record(const c10::Stream& stream) {
    const c10::DeviceGuard there(device_);
    event_->record(stream);
  }
  // Later work on `waiting` waits for the event.
  void let_wait(const c10::Stream& waiting) const {
    const c10::DeviceGuard there(device_);
    event_->block(waiting);
  }
  // Blocks the thread.
  void synchronize() const { event_->synchronize(); }

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;
};

// Later work on `waiting` waits for the work that is on `stream` now. Does not block.
inline void let_wait(const c10::Stream& waiting, const c10::Stream& stream) {
  if (waiting == stream) return;
  DeviceEvent event(stream.device());
  event.record(stream);
  event.let_wait(waiting);
}

// Blocks until the work that is on `stream` now is done.
inline void wait_for(const c10::Stream& stream) {
  DeviceEvent event(stream.device());
  event.record(stream);
  event.synchronize();
}

}  // namespace stretto

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

// Order on a device of whatever kind, by PyTorch's generic streams and events.
namespace stretto {

// Whether tensors there are at addresses, and in no handles.
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

// Whether a graph of the device captures what comes to it. Before PyTorch 2.13 only the device's
// own library knew: there, capture fails with what that says.
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

// One that does not wait for the default stream by itself; of the few that the process shares.
inline c10::Stream new_stream(c10::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStreamFromGlobalPool(device);
}

// An event of a device, which is the thread's current one while it is used. PyTorch makes it so as
// well, and then makes the one from before current again, on which CUDA gives the process a context
// if it has none: that would be GPU 0 on all ranks.
class DeviceEvent {
 public:
  explicit DeviceEvent(c10::Device device)
      : device_(device), event_(std::in_place, device.type()) {}
  DeviceEvent(DeviceEvent&&) = default;
  ~DeviceEvent() {
    try {
      const c10::DeviceGuard there(device_);
      event_.reset();
    } catch (const c10::Error&) {  // The device has failed, which whoever uses it next is told.
    }
  }

  // It now stands for what is on a stream of the device.
  void record(const c10::Stream& stream) {
    const c10::DeviceGuard there(device_);
    event_->record(stream);
  }
  // What comes to `waiting` from now on waits for it.
  void let_wait(const c10::Stream& waiting) const {
    const c10::DeviceGuard there(device_);
    event_->block(waiting);
  }
  // The thread waits.
  void synchronize() const { event_->synchronize(); }

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;
};

// What comes to `waiting` from now on waits for what is on `stream` now; the thread does not.
inline void let_wait(const c10::Stream& waiting, const c10::Stream& stream) {
  if (waiting == stream) return;
  DeviceEvent event(stream.device());
  event.record(stream);
  event.let_wait(waiting);
}

// The thread waits for what is on `stream` now.
inline void wait_for(const c10::Stream& stream) {
  DeviceEvent event(stream.device());
  event.record(stream);
  event.synchronize();
}

}  // namespace stretto

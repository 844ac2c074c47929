// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "stretto/base/log.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/page_locked.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {

// Copies from a device on a stream of its own: the host waits for the copies, and must not wait for
// work that is begun after them.
class CopiesToHost {
 public:
  explicit CopiesToHost(torch::Device device) : device_(device) {}

  // Returns when `to` has the content that `from` has behind `made`, and resets `from`.
  void move(torch::Tensor& from, const DeviceEvent& made, ByteSpan to) {
    if (!to.empty()) {
      if (!stream_) stream_ = new_stream(device_);
      made.let_wait(*stream_);
      const c10::StreamGuard reading(*stream_);
      tensor_of(to, torch::kCPU).copy_(from.view(torch::kByte));
    }
    from.reset();
  }

 private:
  const torch::Device device_;
  std::optional<c10::Stream> stream_;
};

// Stands for copies that a device makes from the host: the destructor waits for them, so that their
// memory can be freed after it.
class CopiesFromHost {
 public:
  CopiesFromHost() = default;
  CopiesFromHost(const CopiesFromHost&) = delete;
  CopiesFromHost& operator=(const CopiesFromHost&) = delete;
  ~CopiesFromHost() {
    try {
      wait();
    } catch (const c10::Error& error) {  // The device has failed, and reads nothing any more.
      log(LogLevel::warning, "what a device was to read is freed behind a failure: {}",
          error.what_without_backtrace());
    }
  }

  // From now on, stands for all work so far on the calling thread's current stream.
  void record(torch::Device device) {
    begun_.emplace(device);
    begun_->record(current_stream(device));
  }
  void wait() const {
    if (begun_) begun_->synchronize();
  }

 private:
  std::optional<DeviceEvent> begun_;
};

// Replaces `memory`, which no device may be using, by `bytes` of page-locked memory for `device`.
inline void make_anew(Memory& memory, std::size_t bytes, Communicator& communicator,
                      torch::Device device) {
  memory = {};
  memory = page_locked(communicator.allocate_bytes(bytes), device.index());
}

}  // namespace stretto::ddp

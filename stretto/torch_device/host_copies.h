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

// Copies from a device, on a stream of their own, since the host waits for them, and must not for
// what comes behind.
class CopiesToHost {
 public:
  explicit CopiesToHost(torch::Device device) : device_(device) {}

  // Returns when `to` has what is there behind `made`, which it lets go of.
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

// Stands for what a device reads of the host, whose memory is to go after this.
class CopiesFromHost {
 public:
  CopiesFromHost() = default;
  CopiesFromHost(const CopiesFromHost&) = delete;
  CopiesFromHost& operator=(const CopiesFromHost&) = delete;
  ~CopiesFromHost() {
    try {
      wait();
    } catch (const c10::Error& error) {  // It has failed, and reads nothing any more.
      log(LogLevel::warning, "what a device was to read is freed behind a failure: {}",
          error.what_without_backtrace());
    }
  }

  // They are what the calling thread has begun, and what comes before that.
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

// Makes memory of the host, which no device uses any more, so long; the device will use it.
inline void make_anew(Memory& memory, std::size_t bytes, Communicator& communicator,
                      torch::Device device) {
  memory = {};
  memory = page_locked(communicator.allocate_bytes(bytes), device.index());
}

}  // namespace stretto::ddp

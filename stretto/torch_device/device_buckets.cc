// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/device_buckets.h"

#include <algorithm>
#include <exception>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "stretto/base/log.h"
#include "stretto/base/stream_guard.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {

// The calling thread's current stream, which uses the memory from now on.
c10::Stream DeviceBuckets::use() const {
  const c10::Stream current = current_stream(device_);
  const MutexLock lock(users_->mutex);
  auto& streams = users_->streams;
  if (std::ranges::find(streams, current) == streams.end()) streams.push_back(current);
  return current;
}

// A device's allocator hands freed memory out again on the stream that it was allocated on: here
// the default stream, which by then waits for the others.
Memory DeviceBuckets::allocate_copy(std::size_t bytes) {
  const c10::Stream owning = default_stream(device_);
  const auto free = [users = users_, owning](torch::Tensor* tensor) {
    try {
      const MutexLock lock(users->mutex);
      for (const c10::Stream& stream : users->streams) let_wait(owning, stream);
    } catch (const std::exception& error) {
      // The device has failed, or is no more as the program ends: nothing runs there any more.
      log(LogLevel::warning, "memory of {} is freed behind a failure: {}", owning.device().str(),
          error.what());
    }
    delete tensor;
  };
  std::shared_ptr<torch::Tensor> made;
  {
    const c10::StreamGuard on_stream(owning);
    const torch::NoGradGuard no_grad;
    const auto size = static_cast<std::int64_t>(bytes);
    const auto options = torch::TensorOptions().dtype(torch::kByte).device(device_);
    made = {new torch::Tensor(torch::zeros({size}, options)), free};
  }
  let_wait(use(), owning);
  return {made, {static_cast<std::byte*>(made->data_ptr()), bytes}};
}

void DeviceBuckets::copy(ByteSpan to, ConstByteSpan from) {
  convert({to.data(), to.size(), DType::u8}, {from.data(), from.size(), DType::u8});
}

void DeviceBuckets::convert(const View& to, const ConstView& from) {
  if (from.count == 0) return;
  on_device([&] {
    // The default stream waits for all streams that have written gradients, since publish().
    let_wait(use(), default_stream(device_));
    const torch::NoGradGuard no_grad;
    tensor_of(to, device_).copy_(tensor_of(from, device_), /*non_blocking=*/true);
  });
}

void DeviceBuckets::clear(ByteSpan bytes) {
  if (bytes.empty()) return;
  on_device([&] {
    (void)use();
    const torch::NoGradGuard no_grad;
    tensor_of(bytes, device_).zero_();
  });
}

void DeviceBuckets::publish() {
  on_device([&] { let_wait(default_stream(device_), use()); });
}

Status DeviceBuckets::end(Work& work) {
  const StreamGuard none(nullptr);
  const Status status = work.wait_on_device();
  on_device([&] { let_wait(use(), default_stream(device_)); });
  return status;
}

}  // namespace stretto::ddp

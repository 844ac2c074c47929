// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/device_buckets.h"

#include <algorithm>
#include <exception>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "stretto/base/log.h"
#include "stretto/torch/streams.h"

namespace stretto::ddp {
namespace {

torch::TensorOptions bytes_on(c10::Device device) {
  return torch::TensorOptions().dtype(torch::kByte).device(device);
}

// What lies there, as a tensor that does not keep it alive.
torch::Tensor tensor_at(const std::byte* data, std::size_t bytes, c10::Device device) {
  return at::for_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)})
      .options(bytes_on(device))
      .target_device(device)
      .make_tensor();
}

// Its failures are told as stretto's, which end the step on all ranks.
template <class Act>
void on_device(const Act& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    status_of(StatusCode::system, "a bucket on a device: {}", error.what_without_backtrace())
        .or_throw();
  }
}

}  // namespace

// The calling thread's current stream, which uses the memory from now on.
c10::Stream DeviceBuckets::use() const {
  const c10::Stream current = current_stream(device_);
  const MutexLock lock(users_->mutex);
  auto& streams = users_->streams;
  if (std::ranges::find(streams, current) == streams.end()) streams.push_back(current);
  return current;
}

// An allocator of a device knows the stream that memory was made on, and hands it out there again:
// the default one, which by then waits for the others.
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
    made = {new torch::Tensor(torch::zeros({size}, bytes_on(device_))), free};
  }
  let_wait(use(), owning);
  return {made, {static_cast<std::byte*>(made->data_ptr()), bytes}};
}

void DeviceBuckets::copy(ByteSpan to, ConstByteSpan from) {
  if (from.empty()) return;
  on_device([&] {
    (void)use();
    const torch::NoGradGuard no_grad;
    tensor_at(to.data(), to.size(), device_)
        .copy_(tensor_at(from.data(), from.size(), device_), /*non_blocking=*/true);
  });
}

void DeviceBuckets::clear(ByteSpan bytes) {
  if (bytes.empty()) return;
  on_device([&] {
    (void)use();
    const torch::NoGradGuard no_grad;
    tensor_at(bytes.data(), bytes.size(), device_).zero_();
  });
}

void DeviceBuckets::written() {
  on_device([&] { let_wait(default_stream(device_), use()); });
}

Status DeviceBuckets::end(Work& work) {
  const Status status = work.wait_on_device();
  on_device([&] { let_wait(use(), default_stream(device_)); });
  return status;
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/staged_reduction.h"

#include <algorithm>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "stretto/base/check.h"
#include "stretto/base/log.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/host_copies.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

// Long enough for full speed of copies and reductions, short enough for these to overlap.
constexpr std::size_t kSliceBytes = std::size_t{4} << 20;

}  // namespace

struct StagedReduction::Slice {
  View on_device;
  View on_host;
  AllReduceOptions options;
  DeviceEvent copied;
  Work work;
};

struct StagedReduction::Bucket {
  Memory host;
  std::vector<Slice> slices;
};

StagedReduction::StagedReduction(torch::Device device) : device_(device) {}

// The device may still be copying to and from memory that is freed now.
StagedReduction::~StagedReduction() {
  try {
    wait_for_copies();
  } catch (const std::exception& error) {  // The device has failed, and copies nothing any more.
    log(LogLevel::warning, "page-locked memory is freed behind a failure: {}", error.what());
  }
}

void StagedReduction::wait_for_copies() const {
  on_device([&] {
    for (const auto& stream : {to_host_, to_device_}) {
      if (stream) stream->synchronize();
    }
  });
}

void StagedReduction::attach(Communicator& communicator, std::span<const GradientDescription>) {
  wait_for_copies();
  communicator_ = &communicator;
  copied_.clear();
  buckets_.clear();
}

Work StagedReduction::start(Communicator& communicator, const FullBucket& full) {
  STRETTO_CHECK(communicator_ == &communicator, "attach() with this communicator comes first");
  if (communicator.size() == 1) return {};  // The sum or mean over one rank is the bucket itself.
  // A step that has failed leaves slices behind.
  if (std::exchange(step_, full.step) != full.step) copied_.clear();
  while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
  Bucket& bucket = *buckets_[full.index];
  on_device([&] { copy_to_host(full, bucket); });
  reduce_copied(full.is_last() ? 0 : bucket.slices.size());
  return {};
}

// The copies come after all work on the calling thread's current stream and the default stream.
void StagedReduction::copy_to_host(const FullBucket& full, Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  if (!to_host_) {
    to_host_ = new_stream(device_);
    to_device_ = new_stream(device_);
  }
  if (bucket.host.bytes().size() < full.view.bytes()) {
    wait_for_copies();  // The device may still read memory that is freed now.
    make_anew(bucket.host, full.view.bytes(), *communicator_, device_);
  }
  let_wait(*to_host_, current_stream(device_));
  let_wait(*to_host_, default_stream(device_));
  let_wait(*to_host_, *to_device_);  // It may still read results of the last step on the host.
  const c10::StreamGuard reading(*to_host_);
  const std::size_t element_bytes = size_bytes(full.view.dtype);
  const std::size_t slice = kSliceBytes / element_bytes;
  bucket.slices.clear();
  for (std::size_t begin = 0; begin < full.view.count; begin += slice) {
    const std::size_t count = std::min(slice, full.view.count - begin);
    const std::size_t offset = begin * element_bytes;
    bucket.slices.push_back({{full.view.data + offset, count, full.view.dtype},
                             {bucket.host.bytes().data() + offset, count, full.view.dtype},
                             {.op = full.op, .timeout = full.timeout},
                             DeviceEvent(device_),
                             {}});
    Slice& made = bucket.slices.back();
    tensor_of(made.on_host, torch::kCPU)
        .copy_(tensor_of(made.on_device, device_), /*non_blocking=*/true);
    made.copied.record(*to_host_);
  }
  for (Slice& made : bucket.slices) copied_.push_back(&made);
}

// Begins the reduction of all copied slices except the last `left`.
void StagedReduction::reduce_copied(std::size_t left) {
  for (; copied_.size() > left; copied_.pop_front()) {
    Slice& slice = *copied_.front();
    on_device([&] { slice.copied.synchronize(); });
    slice.work = communicator_->all_reduce(slice.on_host, slice.options);
  }
}

// The caller's stream waits for copies to the bucket even after a failure, since the memory of the
// bucket may then be used for something else.
void StagedReduction::finish(const FullBucket& full) {
  if (communicator_->size() == 1) return;
  STRETTO_CHECK(copied_.empty(), "bucket {} ends before the last one has begun", full.index);
  Status status;
  for (Slice& slice : buckets_[full.index]->slices) {
    status = slice.work.wait_status();
    if (!status.ok()) break;
    on_device([&] {
      const torch::NoGradGuard no_grad;
      const c10::StreamGuard writing(*to_device_);
      tensor_of(slice.on_device, device_)
          .copy_(tensor_of(slice.on_host, torch::kCPU), /*non_blocking=*/true);
    });
  }
  on_device([&] { let_wait(current_stream(device_), *to_device_); });
  full.memory->publish();
  status.or_throw();
}

}  // namespace stretto::ddp

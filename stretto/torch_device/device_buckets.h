// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stretto/base/mutex.h"
#include "stretto/reducer/bucket_memory.h"
#include "stretto/torch_device/device_allocation.h"

namespace stretto::ddp {

// Buckets in memory of a device. The host does not wait for work there, except as operations of a
// communicator do. Streams wait for each other's events instead; the default stream stands between
// the program's streams and the communicator's.
class DeviceBuckets : public BucketMemory {
 public:
  explicit DeviceBuckets(c10::Device device) : device_(device) {}

  Memory allocate(Communicator&, std::size_t bytes) override { return allocate_copy(bytes); }
  Memory allocate_copy(std::size_t bytes) override;
  void copy(ByteSpan to, ConstByteSpan from) override;
  void convert(const View& to, const ConstView& from) override;
  void clear(ByteSpan bytes) override;
  bool is_zero(ConstByteSpan) const override { return false; }
  void publish() override;
  // If NCCL reduces the bucket, this returns once all ranks have begun on their devices; if our
  // kernels do, it returns when the reduction has ended.
  Status end(Work& work) override;

 protected:
  c10::Device device() const { return device_; }

 private:
  // The streams besides the default one that have used the memory. The default stream waits for
  // them before it gets the memory back.
  struct Users {
    Mutex mutex;
    std::vector<c10::Stream> streams STRETTO_GUARDED_BY(mutex);
  };
  c10::Stream use() const;

  c10::Device device_;
  std::shared_ptr<Users> users_ = std::make_shared<Users>();
};

// Buckets in memory that the communicator allocates and its operations reduce: some operations take
// no other. The host waits for the device when the memory is allocated or freed.
class CommunicatorBuckets final : public DeviceBuckets {
 public:
  using DeviceBuckets::DeviceBuckets;
  Memory allocate(Communicator& communicator, std::size_t bytes) override {
    return allocate_on(device(), communicator, bytes);
  }
};

}  // namespace stretto::ddp

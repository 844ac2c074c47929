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

namespace stretto::ddp {

// Buckets in memory of the device of a communicator, which makes it and reduces them there. The
// host waits for the device where that is made or freed, and where the communicator's operations
// do. All else streams wait for, by each other's events, and the default stream stands between the
// program's and the communicator's.
class DeviceBuckets : public BucketMemory {
 public:
  explicit DeviceBuckets(c10::Device device) : device_(device) {}

  Memory allocate(Communicator& communicator, std::size_t bytes) override {
    return communicator.allocate_bytes(bytes, device_.index());
  }
  Memory allocate_copy(std::size_t bytes) override;
  void copy(ByteSpan to, ConstByteSpan from) override;
  void convert(const View& to, const ConstView& from) override;
  void clear(ByteSpan bytes) override;
  bool is_zero(ConstByteSpan) const override { return false; }
  void written() override;
  // By NCCL once all ranks have begun it on their devices; by our kernels when it has ended.
  Status end(Work& work) override;

 private:
  // The streams that have used the memory besides the default one, which gets it back.
  struct Users {
    Mutex mutex;
    std::vector<c10::Stream> streams STRETTO_GUARDED_BY(mutex);
  };
  c10::Stream use() const;

  c10::Device device_;
  std::shared_ptr<Users> users_ = std::make_shared<Users>();
};

}  // namespace stretto::ddp

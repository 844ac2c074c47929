// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// Where the buckets of a Reducer lie, and how their bytes are read and written; also for memory
// that the host cannot read. A function may return before it has taken effect, but takes effect
// after what the calling thread has begun on this memory before, and before what it begins next.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;

  // Returns zeroed memory for a bucket, which may outlive this object and the communicator.
  virtual Memory allocate(Communicator& communicator, std::size_t bytes) = 0;
  // Returns memory for a temporary copy of a part of a bucket.
  virtual Memory allocate_copy(std::size_t bytes) = 0;
  // Both have the same number of bytes, and do not overlap.
  virtual void copy(ByteSpan to, ConstByteSpan from) = 0;
  // Rounds to nearest. Equal counts; one side is f32, the other f16 or bf16.
  virtual void convert(const View& to, const ConstView& from) = 0;
  virtual void clear(ByteSpan bytes) = 0;
  // May return false for zeros if the host would have to wait to find out.
  virtual bool is_zero(ConstByteSpan bytes) const = 0;
  // Makes operations that any thread submits from now on wait for this thread's writes so far.
  virtual void publish() = 0;
  // Called to use a reduced bucket: what the calling thread begins next sees the results, although
  // a device may still be reducing when this returns. Returns the failure of the reduction, if any.
  // Leaves in `work` what has to end before the bucket may be freed.
  virtual Status end(Work& work) = 0;
};

// Memory of the host, from Communicator::allocate_bytes(). Functions take effect before they
// return.
class HostBuckets : public BucketMemory {
 public:
  Memory allocate(Communicator& communicator, std::size_t bytes) override;
  Memory allocate_copy(std::size_t bytes) override;
  void copy(ByteSpan to, ConstByteSpan from) override;
  void convert(const View& to, const ConstView& from) override;
  void clear(ByteSpan bytes) override;
  bool is_zero(ConstByteSpan bytes) const override;
  void publish() override {}
  Status end(Work& work) override;
};

// One object for all users; it has no state.
BucketMemory& host_buckets();

}  // namespace stretto

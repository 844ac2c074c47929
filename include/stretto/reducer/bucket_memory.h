// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// Where the buckets of a Reducer lie, and who touches their bytes: the seat for memory that the
// host cannot read. What functions do there comes behind what the calling thread has begun there
// before; it need not have happened when they return, but what the thread begins next sees it.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;

  // Makes zeroed memory for a bucket, which may outlive this object and the communicator.
  virtual Memory allocate(Communicator& communicator, std::size_t bytes) = 0;
  // Makes memory for what a bucket holds until it is put back.
  virtual Memory allocate_copy(std::size_t bytes) = 0;
  // Of equally many bytes, which do not overlap.
  virtual void copy(ByteSpan to, ConstByteSpan from) = 0;
  // Of equally many numbers, of f32 on one side and f16 or bf16 on the other: the nearest.
  virtual void convert(const View& to, const ConstView& from) = 0;
  virtual void clear(ByteSpan bytes) = 0;
  // False also where only waiting could tell.
  virtual bool is_zero(ConstByteSpan bytes) const = 0;
  // Operations that any thread submits from now on wait for what this thread has begun to write.
  virtual void publish() = 0;
  // Ends the reduction of a bucket: what the calling thread begins next sees its results, or finds
  // them where it has failed. Leaves in `work` what has to end before the bucket may be freed.
  virtual Status end(Work& work) = 0;
};

// Memory of the host, from Communicator::allocate_bytes(). All has happened when functions return.
class HostBuckets final : public BucketMemory {
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

// One for all, since they keep nothing.
BucketMemory& host_buckets();

}  // namespace stretto

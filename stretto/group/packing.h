// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/execution/step.h"
#include "stretto/transport/endpoint.h"

namespace stretto::group {

// Owns a mark of DeviceOperations::mark() until its call begins. If the call never begins, the
// destructor calls forget().
class HeldMark {
 public:
  HeldMark() = default;
  // `devices` must outlive it.
  HeldMark(DeviceOperations& devices, int number) : mark_(&devices, Forget{number}) {}
  // Hands the mark to the code that begins the call; -1: there is none.
  int take() { return mark_.release() == nullptr ? -1 : mark_.get_deleter().number; }

 private:
  struct Forget {
    int number;
    void operator()(DeviceOperations* devices) const { devices->forget(number); }
  };
  std::unique_ptr<DeviceOperations, Forget> mark_;
};

// Work on the caller's buffers before and after a collective whose schedule cannot run on them as
// they are: it applies a factor, joins several buffers into one, or copies an input that the output
// would overwrite too early.
struct Packing {
  // The sources are copied before the operation starts. The targets are filled when it has ended
  // well.
  BufferParts parts = {};
  // With kind device, this class copies nothing: a library takes the parts as they are, and an
  // execution on mapped memory copies them on the device, behind the work that `mark` stands for.
  transport::MemoryKind kind = transport::MemoryKind::host;
  HeldMark mark = {};
  // Whether the result lies behind the sources in the scratch, instead of in their place.
  bool apart = false;
  // Where the sources are copied to. Null: to scratch that the group lends.
  std::byte* destination = nullptr;
  transport::Region scratch = {};  // Lent by the group; with kind device, by the backend.

  // The size of the scratch and its parts.
  std::size_t bytes() const;
  ByteSpan input() const { return scratch.bytes.first(source_bytes()); }
  ByteSpan output() const { return scratch.bytes.subspan(output_begin(), target_bytes()); }
  bool is_on_device() const { return kind == transport::MemoryKind::device; }
  bool lacks_scratch() const {
    return !is_on_device() && destination == nullptr && scratch.bytes.empty();
  }
  // Both work as far as the turn allows and go on from where the last turn stopped.
  Status pack(execution::Turn& turn);
  void unpack(execution::Turn& turn);
  bool is_packed() const { return is_on_device() || packed.step > parts.more.size(); }
  bool is_unpacked() const { return is_on_device() || unpacked.step >= parts.targets.size(); }
  // Progress of pack() and unpack(); each part is a step.
  execution::StepCursor packed = {};
  execution::StepCursor unpacked = {};

 private:
  std::size_t source_bytes() const;
  std::size_t target_bytes() const;
  std::size_t output_begin() const;
};

// The size of scratch to allocate for `bytes`: at least 64 KiB, and at most an eighth more than
// needed, so that requests of nearly that size can reuse it.
std::size_t scratch_bytes_for(std::size_t bytes);

// Registered memory for reuse, so that packing needs no system calls.
class ScratchPool {
 public:
  // Returns a region of at least `bytes`.
  Result<transport::Region> take(std::size_t bytes, transport::Endpoint& transport);
  void give_back(transport::Region region);

 private:
  std::vector<transport::Region> idle_;
};

}  // namespace stretto::group

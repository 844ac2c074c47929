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

// What DeviceOperations::mark() has said, until the call with it begins. It is forgotten if the
// call never does.
class HeldMark {
 public:
  HeldMark() = default;
  // `devices` must outlive it.
  HeldMark(DeviceOperations& devices, int number) : mark_(&devices, Forget{number}) {}
  // For whoever begins the call; -1: there is none.
  int take() { return mark_.release() == nullptr ? -1 : mark_.get_deleter().number; }

 private:
  struct Forget {
    int number;
    void operator()(DeviceOperations* devices) const { devices->forget(number); }
  };
  std::unique_ptr<DeviceOperations, Forget> mark_;
};

// What has to happen to the caller's buffers before a collective and after it, where its schedule
// cannot run on them as they are: a factor, several buffers as one, an input that the output
// overwrites too early.
struct Packing {
  // The sources are copied before the operation starts, the targets filled when it has ended well.
  BufferParts parts = {};
  // Of kind device, nothing is done here: a library takes the parts as they are, and an execution
  // on mapped memory copies them there, when what `mark` stands for has been done.
  transport::MemoryKind kind = transport::MemoryKind::host;
  HeldMark mark = {};
  // Whether the result comes behind the sources in the scratch, not in their place.
  bool apart = false;
  // Where the sources go. Null: scratch that the group lends, of their size.
  std::byte* destination = nullptr;
  transport::Region scratch = {};  // Lent; of kind device, by whoever submits the call.

  // How long the scratch is, and where its parts lie.
  std::size_t bytes() const;
  ByteSpan input() const { return scratch.bytes.first(source_bytes()); }
  ByteSpan output() const { return scratch.bytes.subspan(output_begin(), target_bytes()); }
  bool is_on_device() const { return kind == transport::MemoryKind::device; }
  bool lacks_scratch() const {
    return !is_on_device() && destination == nullptr && scratch.bytes.empty();
  }
  // As far as the turn goes, from where the one before has stopped.
  Status pack(execution::Turn& turn);
  void unpack(execution::Turn& turn);
  bool is_packed() const { return is_on_device() || packed.step > parts.more.size(); }
  bool is_unpacked() const { return is_on_device() || unpacked.step >= parts.targets.size(); }
  // How far they are; a part is a step.
  execution::StepCursor packed = {};
  execution::StepCursor unpacked = {};

 private:
  std::size_t source_bytes() const;
  std::size_t target_bytes() const;
  std::size_t output_begin() const;
};

// How much is made where so much scratch is wanted: 64 KiB, or an eighth more at most, for others
// that are nearly as long.
std::size_t scratch_bytes_for(std::size_t bytes);

// Registered memory that is used again and again, so that packing costs no system calls.
class ScratchPool {
 public:
  // Returns at least `bytes`.
  Result<transport::Region> take(std::size_t bytes, transport::Endpoint& transport);
  void give_back(transport::Region region);

 private:
  std::vector<transport::Region> idle_;
};

}  // namespace stretto::group

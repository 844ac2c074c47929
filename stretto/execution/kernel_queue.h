// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/execution/stream.h"
#include "stretto/kernel/reduce.h"
#include "stretto/transport/memory.h"

namespace stretto::execution {

using transport::BufferRef;

// A step of a plan that reduces or copies, bound to buffers: elements of each source, at
// inputs[i].data, go into every target, at outputs[i]. For a kind of memory that this process does
// not reach, these are addresses elsewhere, for the queue that was made for that kind.
struct BoundStep {
  // The kind of memory and the owner of a source or a target.
  struct Operand {
    transport::MemoryKind kind = transport::MemoryKind::host;
    Rank owner = 0;
  };
  std::optional<kernel::PreparedReduction> reduction;  // Nothing: a copy of the one input,
  double factor = 1;                                   // times this (kernel/scale.h).
  std::vector<kernel::Input> inputs;
  std::vector<void*> outputs;
  std::vector<Operand> sources;
  std::vector<Operand> targets;
  std::size_t output_element_bytes = 1;
  std::size_t whole_count = 0;  // Of the whole step, however it is cut: decides how bytes are
                                // stored.
};

// Carries out such steps, in their order: by this process' own loads and stores, or on a stream of
// a device. An execution waits for is_done() before it tells other ranks what the steps have
// written, sends it, or ends.
class KernelQueue : public Stream {
 public:
  // Works on `count` elements of `step`, or begins to. The caller may change `step` afterwards.
  virtual Status run(const BoundStep& step, std::size_t count) = 0;
  // Turns cut steps into pieces: of at least so many bytes of the output.
  virtual std::size_t piece_bytes_min() const { return 0; }
  // What is begun here from now on begins after this mark of the device (DeviceOperations::mark()).
  virtual void begin_behind(int /*mark*/) {}
};

// The queue for memory that this process has mapped: all is done when run() returns. Any thread.
KernelQueue& host_queue();

// Runs a step that copies `from`, times `factor`, to `to`.
Status copy(KernelQueue& queue, const ConstView& from, std::byte* to, double factor = 1);

// A device, which has memory and queues of its own. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  // The device must outlive the queue. Fails with system or out_of_memory, as pin() does.
  virtual Result<std::unique_ptr<KernelQueue>> make_queue() = 0;
  // Page-locks memory of this process until the result and its copies are gone, so that the device
  // can copy from and to it while the thread that begins the copy goes on.
  virtual Result<std::shared_ptr<void>> pin(ByteSpan bytes) = 0;
};

// A device whose memory the ranks of a host map, to run schedules on it. Any thread.
class SharedDevice : public Device, public transport::MappableMemory, public DeviceOperations {
 public:
  // The same in every process that has this device.
  virtual Result<std::array<std::byte, 16>> id() const = 0;
};

}  // namespace stretto::execution

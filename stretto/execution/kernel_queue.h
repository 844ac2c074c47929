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

// A step of a plan that reduces or copies, bound to buffers: `count` elements of each source into
// every target, where inputs[i].data and outputs[i] say. Of a kind that this process does not reach
// they are addresses elsewhere, for the queue that was made for that kind.
struct BoundStep {
  // Whose a source or a target is.
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
  std::size_t whole_count = 0;  // Of the step, however it is cut: decides how bytes are stored.
};

// What carries out such steps, in their order: where a stream of a device takes the place of this
// process' own loads and stores. An execution waits for is_done() before it tells other ranks of
// what the steps have written, sends it, or ends.
class KernelQueue : public Stream {
 public:
  // Works on `count` elements of a step, or begins to; `step` changes when this has returned.
  virtual Status run(const BoundStep& step, std::size_t count) = 0;
  // Turns cut steps into pieces; of no fewer bytes of an operand than this.
  virtual std::size_t piece_bytes_min() const { return 0; }
  // What is begun here from now on begins behind that mark of its device
  // (DeviceOperations::mark()).
  virtual void begin_behind(int /*mark*/) {}
};

// For memory that this process has mapped: everything is done when run() returns. Any thread.
KernelQueue& host_queue();

// Runs a step that copies `from`, times `factor`, to `to`.
Status copy(KernelQueue& queue, const ConstView& from, std::byte* to, double factor = 1);

// What has memory and queues of its own. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  // The device must outlive it. Fails with system or out_of_memory, as pin() does.
  virtual Result<std::unique_ptr<KernelQueue>> make_queue() = 0;
  // Locks memory of this process in its place, so that the device can copy from and to it beside
  // the thread that asks for it, until the result and its copies are gone.
  virtual Result<std::shared_ptr<void>> pin(ByteSpan bytes) = 0;
};

// One whose memory the ranks of a host map, to run schedules on it. Any thread.
class SharedDevice : public Device, public transport::MappableMemory, public DeviceOperations {
 public:
  // The same in every process that has this device.
  virtual Result<std::array<std::byte, 16>> id() const = 0;
};

}  // namespace stretto::execution

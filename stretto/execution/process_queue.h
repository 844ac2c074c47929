// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/execution/execution.h"
#include "stretto/execution/kernel_queue.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

// For steps some of whose places are private to other ranks' processes: the kernel copies from and
// to these, and the others are mapped. So no byte passes through a region.
//
// A reduction goes a piece at a time: inputs of other ranks are copied to scratch and reduced, and
// the result is copied to the others while it is still in this core's cache. See
// docs/decisions/0007. The scratch is the staging of this rank's window: nobody reads staging in
// such a run and, since all ranks have entered it, nobody still reads that of a run before.
//
// Membership, windows and memory must outlive it. One thread at a time, the one that runs the
// operation; the engine's lock need not be held. Allocates only when a reduction has more inputs
// than any before.
class ProcessQueue final : public KernelQueue {
 public:
  ProcessQueue(const Membership& membership, Windows& windows,
               const transport::SharedMemory& memory)
      : membership_(&membership), windows_(&windows), memory_(&memory) {}

  // Fails as SharedMemory::get() and put() do; and with aborted if a rank has abandoned the
  // operation, without touching that rank's memory.
  Status run(const BoundStep& step, std::size_t count) override;
  std::size_t piece_bytes_min() const override { return kPieceBytes; }

 private:
  // How much is copied, reduced and copied back at a time: so much that system calls do not count,
  // and so little that two pieces stay in a core's own cache.
  static constexpr std::size_t kPieceBytes = 256 * 1024;

  Status copy(const BoundStep& step, std::size_t bytes) const;
  Status reduce(const BoundStep& step, std::size_t count);
  Status move(const BufferRef& from, const BufferRef& to, std::size_t bytes) const;
  template <class Copy>
  Status reach_into(Rank owner, const Copy& copy) const;

  const Membership* membership_;
  Windows* windows_;
  const transport::SharedMemory* memory_;
  std::vector<kernel::Input> inputs_;  // Of one piece.
};

}  // namespace stretto::execution

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/execution/execution.h"
#include "stretto/execution/kernel_queue.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

// For steps on mapped memory of which some places are private to other ranks' processes, from where
// and to where the kernel copies. So no byte passes through a region.
//
// A reduction goes a piece at a time: what others have is copied to scratch, reduced, and the
// result copied to the others while it is still in this core's cache. See docs/decisions/0007. The
// scratch is the staging of this rank's window: nobody reads anything of it in such a run, nor,
// since all have entered it, anything of a run before.
//
// Membership, windows and memory must outlive it. One thread at a time, the one that runs the
// operation; the engine's lock need not be held. Allocates nothing once made.
class ProcessQueue final : public KernelQueue {
 public:
  ProcessQueue(const Membership& membership, Windows& windows,
               const transport::SharedMemory& memory)
      : membership_(&membership), windows_(&windows), memory_(&memory) {}

  // Fails as SharedMemory::get() and put() do; and with aborted, having left that rank's memory
  // alone, if a rank has abandoned the operation.
  Status run(const BoundStep& step, std::size_t count) override;
  std::size_t piece_bytes_min() const override { return kPieceBytes; }

 private:
  // What is copied, reduced and copied back at a time: so much that system calls do not count, and
  // so little that two of them stay in a core's own cache.
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

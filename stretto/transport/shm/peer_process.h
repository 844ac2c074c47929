// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>

#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/transport/process_handle.h"

namespace stretto::transport::shm {

// The private memory of another process of this host. The kernel copies from and to it for
// processes that may debug that process: "cross memory attach" (process_vm_readv(2)).
//
// Immutable; any thread.
class PeerProcess {
 public:
  // A process that cannot be reached.
  PeerProcess() = default;
  // `rank` is for the texts of failures.
  PeerProcess(ProcessHandle process, Rank rank) : process_(std::move(process)), rank_(rank) {}

  bool valid() const { return process_.valid(); }
  const ProcessHandle& handle() const { return process_; }
  // Checks that the peer's memory can be read and written, and belongs to the right process: the
  // number at `address` there must be `expected`. It is written back unchanged.
  Status prove(std::uint64_t address, std::uint32_t expected) const;

  // Copy all bytes, or fail: with peer_lost if the process is gone, else with system. Some bytes
  // may have been copied then.
  Status get(std::uint64_t address, ByteSpan to) const;
  Status put(ConstByteSpan from, std::uint64_t address) const;

 private:
  // process_vm_readv or process_vm_writev.
  using Call = ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                       unsigned long);
  Status copy(Call* call, const char* what, ByteSpan own, std::uint64_t address) const;
  Status gone() const;
  Status failure(const char* what, std::size_t bytes, int error_number) const;

  ProcessHandle process_;
  Rank rank_ = 0;
};

}  // namespace stretto::transport::shm

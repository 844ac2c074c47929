// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport::shm {

// The private memory of another process of this host, which the kernel copies for those whom it
// lets debug that process: "cross memory attach" (process_vm_readv(2)).
//
// Copies share a descriptor of the process (pidfd), which tells that it has ended, whoever has its
// number by then. Immutable; any thread.
class PeerProcess {
 public:
  // None: cannot be reached.
  PeerProcess() = default;
  // The process at the other end of a Unix socket, as the kernel knows it. `rank` is for messages.
  static PeerProcess of_socket(int socket, Rank rank);

  bool valid() const { return process_ > 0 && handle_ != nullptr; }
  // Whether the peer's memory can be read and written, and is that of the process meant: what lies
  // at `address` there must be `expected`, and is written back as it is.
  Status prove(std::uint64_t address, std::uint32_t expected) const;

  // All bytes, or a failure: peer_lost if the process is gone, else system.
  Status get(std::uint64_t address, ByteSpan to) const;
  Status put(ConstByteSpan from, std::uint64_t address) const;

 private:
  // process_vm_readv or process_vm_writev.
  using Call = ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                       unsigned long);
  Status copy(Call* call, const char* what, ByteSpan own, std::uint64_t address) const;
  bool has_ended() const;
  Status gone() const;
  Status failure(const char* what, std::size_t bytes, int error_number) const;

  pid_t process_ = 0;
  std::shared_ptr<const FileDescriptor> handle_;
  Rank rank_ = 0;
};

}  // namespace stretto::transport::shm

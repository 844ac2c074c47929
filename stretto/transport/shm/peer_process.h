// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <cstdint>

#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport::shm {

// The private memory of another process of this host, which the kernel copies for those whom it
// lets debug that process: "cross memory attach" (process_vm_readv(2)).
//
// Immutable; any thread. A process that has ended and whose number has been given to another one of
// the same user would not be told apart from it: ask only while the peer owes something.
class PeerProcess {
 public:
  // None: cannot be reached.
  PeerProcess() = default;
  // The process at the other end of a Unix socket, as the kernel knows it. `rank` is for messages.
  static PeerProcess of_socket(int socket, Rank rank);

  bool valid() const { return process_ > 0; }
  // Whether the peer's memory can be reached, and is that of the process meant: what lies at
  // `address` there must be `expected`. Reads the peer's memory.
  Status prove(std::uint64_t address, std::uint32_t expected) const;

  // All bytes, or a failure: peer_lost if the process is gone, else system.
  Status read(std::uint64_t address, ByteSpan to) const;
  Status write(ConstByteSpan from, std::uint64_t address) const;

 private:
  PeerProcess(pid_t process, Rank rank) : process_(process), rank_(rank) {}
  Status failure(const char* what, std::size_t bytes, int error_number) const;

  pid_t process_ = 0;
  Rank rank_ = 0;
};

}  // namespace stretto::transport::shm

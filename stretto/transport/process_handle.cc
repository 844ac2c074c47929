// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/process_handle.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "stretto/base/poll.h"

namespace stretto::transport {

Result<ProcessHandle> ProcessHandle::of_number(pid_t number) {
  ProcessHandle handle;
  if (number <= 0) return handle;
  FileDescriptor descriptor(static_cast<int>(::syscall(SYS_pidfd_open, number, 0)));
  if (!descriptor.valid()) {
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    return is_short ? Result<ProcessHandle>(system_status("pidfd_open")) : handle;
  }
  handle.number_ = number;
  handle.descriptor_ = std::make_shared<const FileDescriptor>(std::move(descriptor));
  return handle;
}

Result<ProcessHandle> ProcessHandle::of_socket(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return ProcessHandle();
  // One that cannot be seen from here, in another namespace of processes, has the number 0.
  return of_number(peer.pid);
}

bool ProcessHandle::has_ended() const { return is_readable(descriptor()); }

}  // namespace stretto::transport

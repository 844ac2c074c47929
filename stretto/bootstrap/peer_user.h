// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto::bootstrap {

// The user whose process holds the other end of a connected socket, according to the kernel. Always
// known for a Unix socket; for a TCP connection only if its other end is in this network namespace
// and still open.
std::optional<uid_t> peer_user(int fd);

// Whether peer_user() is this process's own user or root, who has full control over this process
// anyway.
bool peer_is_trusted_user(int fd);

// Unix sockets between processes of one user or of root. The listener must refuse other users, as
// AuthenticatingListener does. Its name cannot be guessed and exists on no other machine.
struct UnixListener {
  FileDescriptor socket;
  std::string name;
};
Result<UnixListener> listen_to_own_user();
// Fails with refused at once if the listener would refuse this process, because the listener
// belongs to another user and this process is not root's. Else it fails like
// connect_unix_abstract().
Result<FileDescriptor> connect_to_own_user(const std::string& name, const WaitLimit& limit);

}  // namespace stretto::bootstrap

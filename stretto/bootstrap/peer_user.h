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

// The user whose process holds the other end of a connected socket, as the kernel says. Of a Unix
// socket always; of a TCP connection if its other end is in this network namespace and still open.
std::optional<uid_t> peer_user(int fd);

// Whether that user could do to this process whatever he likes anyway: it is his own, or root.
bool peer_is_trusted_user(int fd);

// Unix sockets between processes of one user, or of root: the listener is to refuse others
// (AuthenticatingListener does), under a name that cannot be guessed and that no other machine has.
struct UnixListener {
  FileDescriptor socket;
  std::string name;
};
Result<UnixListener> listen_to_own_user();
// Fails with refused, at once, if the listener would refuse this process: it belongs to somebody
// else, and this process is not root's; else as connect_unix_abstract() does.
Result<FileDescriptor> connect_to_own_user(const std::string& name, const WaitLimit& limit);

}  // namespace stretto::bootstrap

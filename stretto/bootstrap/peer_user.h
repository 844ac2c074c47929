// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <optional>

namespace stretto::bootstrap {

// The user whose process holds the other end of a connected socket, as the kernel says. Of a Unix
// socket always; of a TCP connection if its other end is in this network namespace and still open.
std::optional<uid_t> peer_user(int fd);

// Whether that user could do to this process whatever he likes anyway: it is his own, or root.
bool peer_is_trusted_user(int fd);

}  // namespace stretto::bootstrap

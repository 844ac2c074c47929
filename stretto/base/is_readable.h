// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <poll.h>

namespace stretto {

// Whether the descriptor has something to read, or has failed, at this moment. A signal that
// interrupts the question tells nothing, and counts as no.
inline bool is_readable(int descriptor) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cerrno>

namespace stretto {

// Whether a non-blocking call on a descriptor failed only because it had nothing to do yet or was
// interrupted. It is to be repeated when the descriptor is ready.
inline bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

}  // namespace stretto

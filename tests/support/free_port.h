// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/bootstrap/socket.h"

namespace stretto {

// Returns a port that was free a moment ago.
inline int free_port() {
  const auto listener = bootstrap::listen_tcp("127.0.0.1", 0).or_throw();
  return bootstrap::local_port(listener.get()).or_throw();
}

}  // namespace stretto

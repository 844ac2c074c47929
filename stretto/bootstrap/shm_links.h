// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/bootstrap/link_provider.h"

namespace stretto::bootstrap {

// Shared memory between ranks of one machine and network namespace, set up over a Unix socket.
std::shared_ptr<LinkProvider> shm_links();

}  // namespace stretto::bootstrap

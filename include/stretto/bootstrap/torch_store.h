// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

struct TorchStoreOptions {
  std::string host = {};
  int port = 0;
};

// A client of the TCPStore that torchrun's agent hosts at MASTER_ADDR:MASTER_PORT. PyTorch's store
// has no authentication: whoever can reach its port can read and write it. torchrun and PyTorch
// keep their own keys in it: use a prefix (prefix_store.h). Speaks the part of the protocol that a
// Store needs. Connects at once. Waits within `limit` for a server that is not there yet, else
// fails with timeout; fails with protocol if something other than a TCPStore answers.
//
// The server has no limits on values. append() and add() check ours before they change a key, so
// the limits hold only if one client at a time changes that key.
Result<std::unique_ptr<Store>> connect_torch_store(const TorchStoreOptions& options,
                                                   const WaitLimit& limit);

}  // namespace stretto::bootstrap

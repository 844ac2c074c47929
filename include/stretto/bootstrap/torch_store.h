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
// knows no authentication: who can reach its port can read and write it. torchrun and PyTorch keep
// their own keys in it: use a prefix (prefix_store.h). Speaks the part of its protocol that a Store
// needs. Connects at once and waits within `limit` for a server that is not there yet (timeout);
// fails with protocol if something else answers there.
//
// The server has no limit on values, so append and add keep ours only where one client at a time
// changes a key.
Result<std::unique_ptr<Store>> connect_torch_store(const TorchStoreOptions& options,
                                                   const WaitLimit& limit);

}  // namespace stretto::bootstrap

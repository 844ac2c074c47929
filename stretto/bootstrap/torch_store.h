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
  // Goes before every key; Job::store_prefix. torchrun and PyTorch keep their own keys in this
  // store.
  std::string prefix = "stretto/";
};

// A client of the TCPStore that torchrun's agent hosts at MASTER_ADDR:MASTER_PORT. PyTorch's store
// knows no authentication: who can reach its port can read and write it. Speaks the part of its
// protocol that set and get need. Connects at once and waits until `deadline` for a server that is
// not there yet (timeout); fails with protocol if something else answers there.
Result<std::unique_ptr<Store>> connect_torch_store(const TorchStoreOptions& options,
                                                   Deadline deadline);

}  // namespace stretto::bootstrap

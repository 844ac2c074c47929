// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

struct TcpStoreOptions {
  std::string host = {};
  int port = 0;
  JobKey key = {};
  Identity self = {};
  // Who hosts the store, for error messages.
  std::string owner = "the launcher";
};

// A client of a StoreServer. Connects at once: fails with refused if the key or version is wrong.
// Waits for a server that is not there yet, and fails with timeout at the limit.
Result<std::unique_ptr<Store>> connect_tcp_store(const TcpStoreOptions& options,
                                                 const WaitLimit& limit);

}  // namespace stretto::bootstrap

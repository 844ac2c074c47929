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
  // Who serves there, for messages.
  std::string owner = "the launcher";
};

// A client of a store_server.h. Connects at once, so that a wrong key or version is found here
// (refused); waits within `limit` for a server that is not there yet (timeout).
Result<std::unique_ptr<Store>> connect_tcp_store(const TcpStoreOptions& options,
                                                 const WaitLimit& limit);

}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/handshake.h"

namespace stretto::bootstrap {

struct StoreServerOptions {
  // The one address it listens on. Port 0: the system chooses one.
  std::string host = "127.0.0.1";
  int port = 0;
  JobKey key = {};
  Identity self = {};
  // A connection that has not proven the key by then is closed.
  Duration handshake_timeout = std::chrono::seconds(10);
  // When more connections are unproven, the oldest is closed that has not shown the key. Those that
  // have proven it are never closed for others.
  std::size_t max_handshakes = 4096;
  // All that clients make it hold: keys and values, unfinished requests, replies that nobody takes,
  // wills, and something for each entry and connection. A request that would go beyond it is
  // refused, a connection closed.
  std::size_t max_total_bytes = std::size_t{256} << 20;
};

// The store that the launcher, or rank 0, hosts. One thread serves all clients; nothing a client
// does, or does not do, holds up another. Who does not hold the job key is refused with a warning
// in the log. If it is one of the job's own ranks (join_failure.h), waiting for it is in vain: then
// the store notes that under kJoinFailureKey. Ends with its object: clients see their connections
// close.
class StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);
  virtual ~StoreServer() = default;

  virtual int port() const = 0;
  // How many connections are open that have proven the job key. Any thread.
  virtual std::size_t client_count() const = 0;
  // How many of them have left a will. Any thread.
  virtual std::size_t will_count() const = 0;
};

}  // namespace stretto::bootstrap

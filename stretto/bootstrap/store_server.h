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
  // The only address on which it listens. Port 0: the system chooses one.
  std::string host = "127.0.0.1";
  int port = 0;
  JobKey key = {};
  Identity self = {};
  // A connection that has not proven the key within this time is closed.
  Duration handshake_timeout = std::chrono::seconds(10);
  // If more connections are unproven, the oldest that has not shown the key is closed. Proven
  // connections are never closed to make room.
  std::size_t max_handshakes = 4096;
  // Limit of the memory that clients make it hold: keys and values, unfinished requests, replies
  // that are not read, wills, and a fixed amount per entry and connection. Beyond it, a request is
  // refused and a connection closed.
  std::size_t max_total_bytes = std::size_t{256} << 20;
};

// The store that the launcher or rank 0 hosts. One thread serves all clients, and no client can
// hold up another. A client without the job key is refused with a warning in the log. If that
// client is one of the job's own ranks, which the others would wait for in vain, the store sets
// kJoinFailureKey (join_failure.h). When the object is destroyed, clients see their connections
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

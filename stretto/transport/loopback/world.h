// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stretto/transport/endpoint.h"

namespace stretto::transport::loopback {

struct WorldOptions {
  int ranks = 1;
  // Whether ranks reach each other's registered memory; if not, they only send messages.
  bool shared_memory = true;
  // A host number per rank: only ranks with the same one reach each other's memory. Empty: all do.
  std::vector<std::int32_t> hosts = {};
  // If set, wraps the link from a rank to a peer: in a test that counts, say.
  std::function<std::unique_ptr<Link>(Rank self, Rank peer, std::unique_ptr<Link> link)> wrap = {};
};

// The connected endpoints of ranks that are threads of this process: a job without processes, for
// tests, and for programs that want one rank per thread. Endpoint r belongs to the thread of rank
// r.
Result<std::vector<std::unique_ptr<Endpoint>>> make_world(const WorldOptions& options);

}  // namespace stretto::transport::loopback

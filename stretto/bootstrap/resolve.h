// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto::bootstrap {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a host, which is a name or a numeric address, for stream sockets. The system's
// resolver has no time limit, so a name is looked up on a thread of its own. At the limit this
// fails with system, like any failure that may pass, and leaves the thread running.
Result<Addresses> resolve(const std::string& host, int port, const WaitLimit& limit);

}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/base/wait_limit.h"
#include "stretto/transport/endpoint.h"

namespace stretto::transport::shm {

// Exchanges inboxes with the ranks of this host and fills in the parts of an endpoint that concern
// them: links, memory, sleep flag. `sockets[r]` is a connected Unix stream socket to rank r, or
// invalid where there is none; links of other ranks are left null for another transport to fill in.
//
// Blocks until every peer has answered or the limit is reached. Fails if one peer fails, or if this
// process lacks descriptors or address space for longer than kShortageTime: the caller must know,
// when it connects the sockets, that both sides can map each other's memory.
Result<Endpoint::Parts> attach(Rank self, std::vector<FileDescriptor> sockets,
                               const WaitLimit& limit);

}  // namespace stretto::transport::shm

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::transport {

// A memory barrier on all running threads of all processes that have registered, at the cost of one
// system call of the thread that wants it. So of two sides that each store one word and then load
// the other's, the frequent one gets away without a fence (Linux: membarrier(2), global expedited).

// Registers this process. False where the kernel does not have it, or a sandbox forbids it.
bool register_expedited_barrier();
// Works in a registered process only.
void expedited_barrier();

}  // namespace stretto::transport

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/kernel/reduce.h"

namespace stretto::kernel {

// memcpy with a choice of store: the buffers do not overlap, need no alignment, and may be null if
// `bytes` is 0. `automatic` goes past the cache if both buffers together are more than half of the
// last-level cache, or if those of a copy of `whole_bytes` are, of which this is a part. However
// the bytes were written, a release store after the call publishes them. Never blocks; any thread.
void copy(void* to, const void* from, std::size_t bytes, Store store = Store::automatic,
          std::size_t whole_bytes = 0);

// Bytes of the largest cache that this thread's processor can reach. Read from the system at the
// first call; 32 MiB where the system does not tell.
std::size_t last_level_cache_bytes();

// Whether a call that moves `bytes` (what it reads and what it writes, in different places) stores
// past the cache.
bool is_non_temporal(Store store, std::size_t bytes);

}  // namespace stretto::kernel

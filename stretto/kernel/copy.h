// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/kernel/reduce.h"

namespace stretto::kernel {

// memcpy with a choice of store. The buffers must not overlap, need no alignment, and may be null
// if `bytes` is 0. `automatic` uses non-temporal stores if both buffers together exceed half of the
// last-level cache. If the call is a part of a copy of `whole_bytes`, the buffers of that copy
// count. With any store, a release store after the call publishes the bytes. Never blocks; any
// thread.
void copy(void* to, const void* from, std::size_t bytes, Store store = Store::automatic,
          std::size_t whole_bytes = 0);

// Bytes of the largest cache of processor 0. Read from the system at the first call; 32 MiB if the
// system does not tell.
std::size_t last_level_cache_bytes();

// Whether a call uses non-temporal stores if it moves `bytes`: the bytes that it reads plus the
// bytes that it writes elsewhere.
bool is_non_temporal(Store store, std::size_t bytes);

}  // namespace stretto::kernel

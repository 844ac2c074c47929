// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/kernel/reduce.h"

namespace stretto::kernel {

// Bytes of the largest cache that this thread's processor can reach. Read from the system at the
// first call; 32 MiB where the system does not tell.
std::size_t last_level_cache_bytes();

// Whether a call that moves `bytes` (what it reads and what it writes, in different places) stores
// past the cache.
bool is_non_temporal(Store store, std::size_t bytes);

}  // namespace stretto::kernel

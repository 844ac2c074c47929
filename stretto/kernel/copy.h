// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/kernel/reduce.h"

namespace stretto::kernel {

// memcpy with a choice of store: the buffers do not overlap, need no alignment, and may be null if
// `bytes` is 0. `automatic` goes past the cache if both buffers together do not fit into it. When
// it returns, a release store publishes the bytes, whichever way they were written. Any thread.
void copy(void* to, const void* from, std::size_t bytes, Store store = Store::automatic);

}  // namespace stretto::kernel

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// Raises the soft limit on this process' descriptors (`ulimit -n`) to `count`, at most to the hard
// limit. Never lowers it. Does nothing if `count` is at most 1024, the usual limit: a limit below
// that is set on purpose.
void allow_descriptors(std::size_t count);

}  // namespace stretto

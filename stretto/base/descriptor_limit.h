// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// Raises the soft limit on this process' descriptors (`ulimit -n`) to `count`, as far as the hard
// one lets it; never lowers it, and leaves it alone where the usual 1024 would do: a lower limit is
// somebody's wish.
void allow_descriptors(std::size_t count);

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "tools/bench/options.h"

namespace stretto::bench {

// What each rank of `stretto bench --explain` does; rank 0 prints how the collectives run and why.
// Returns the exit status. Throws what the library throws.
int run_explaining_rank(const BenchOptions& options);

}  // namespace stretto::bench

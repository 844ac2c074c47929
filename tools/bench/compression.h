// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "tools/bench/options.h"

namespace stretto::bench {

// What each rank of `stretto bench --compression` does: measures, in turns, what steps with each
// codec take on this link; rank 0 prints which pay. Returns the exit status. Throws what the
// library throws.
int run_compressing_rank(const BenchOptions& options);

}  // namespace stretto::bench

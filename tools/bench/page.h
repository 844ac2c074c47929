// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "tools/bench/line.h"
#include "tools/bench/options.h"
#include "tools/bench/table.h"

namespace stretto::bench {

// One self-contained page of HTML about a run: plots as inline SVG, the machine, and every line.
// Needs nothing from elsewhere, and no script but for the values under the pointer.
std::string page(const RunFacts& facts, const BenchOptions& options,
                 const std::vector<Line>& lines);

}  // namespace stretto::bench

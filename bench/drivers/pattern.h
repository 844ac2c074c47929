// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "bench/drivers/driver.h"

namespace stretto::bench {

// Writes this rank's input of iteration `iteration` of `job`. Small whole numbers, different for
// each rank, iteration and neighbouring place: their sums are exact in any order, and what is left
// from the iteration before is not taken for a result.
void fill_input(const Job& job, int rank, int ranks, std::uint64_t iteration);

// Whether the output of `job` is what the operation makes of these inputs. If not, `problem` says
// where, what is there and what should be.
bool output_is_right(const Job& job, int rank, int ranks, std::uint64_t iteration,
                     std::string& problem);

}  // namespace stretto::bench

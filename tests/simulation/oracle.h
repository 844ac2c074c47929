// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/dtype.h"
#include "stretto/base/random.h"
#include "stretto/base/reduce_op.h"
#include "tests/simulation/scenario.h"

namespace stretto::simulation {

// `count` numbers of a type: any integers, positive finite floating point numbers that are seldom
// sums or products of each other.
Bytes draw_values(Random& random, DType dtype, std::size_t count);
// The same, but floating point numbers of which `op` over a few ranks is exact until the last
// rounding, so that every order gives the same bits.
Bytes draw_order_free_values(Random& random, DType dtype, ReduceOp op, std::size_t count);

// All ranks' values reduced side by side, in the promised order. The kernel itself is tested
// against a scalar sum.
Bytes reduced(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op);

}  // namespace stretto::simulation

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// std::vector<bool> has no elements that lie in memory.
// Expected: no matching (member )?function
// Expected: contiguous_range

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  bool array[3] = {};
  comm.all_reduce(array, {.op = stretto::ReduceOp::max}).wait();
#ifdef STRETTO_WRONG
  std::vector<bool> bits(3);
  comm.all_reduce(bits, {.op = stretto::ReduceOp::max}).wait();
#endif
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A temporary that owns its elements would be gone before the operation ends.
// Expected: borrowed_range

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  std::vector<float> data(3);
  comm.all_reduce(data).wait();
#ifdef STRETTO_WRONG
  comm.all_reduce(std::vector<float>(3)).wait();
#endif
}

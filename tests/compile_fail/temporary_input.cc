// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The same of an input, which a send reads after the call.
// Expected: borrowed_range

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  const std::vector<float> data(3);
  comm.send(data, {.to = 1}).wait();
#ifdef STRETTO_WRONG
  comm.send(std::vector<float>(3), {.to = 1}).wait();
#endif
}

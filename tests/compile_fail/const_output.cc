// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A constant buffer is no output.
// Expected: no matching (member )?function
// Expected: is_const_v

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  std::vector<float> data(3);
  comm.all_reduce(data).wait();
#ifdef STRETTO_WRONG
  const std::vector<float> constant(3);
  comm.all_reduce(constant).wait();
#endif
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Only types that have a dtype can be moved.
// Expected: DTypeOf

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  std::vector<double> numbers(3);
  comm.broadcast(numbers).wait();
#ifdef STRETTO_WRONG
  std::vector<long double> wide(3);
  comm.broadcast(wide).wait();
#endif
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Nor can it be given by assignment.
// Expected: (deleted|implicitly deleted)

#include <utility>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  stretto::Work first = comm.barrier();
  stretto::Work second = comm.barrier();
  second = std::move(first);
#ifdef STRETTO_WRONG
  first = second;
#endif
}

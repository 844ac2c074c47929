// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// An operation has one owner.
// Expected: (deleted|implicitly deleted)

#include <utility>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  stretto::Work first = comm.barrier();
  stretto::Work moved = std::move(first);
  moved.wait();
#ifdef STRETTO_WRONG
  stretto::Work copied = moved;
  copied.wait();
#endif
}

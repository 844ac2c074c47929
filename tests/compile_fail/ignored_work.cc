// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A Work that nobody keeps would wait where the call stands, and tell nobody of a failure.
// Expected: (ignoring return|nodiscard|unused-result)

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  stretto::Work kept = comm.barrier();
  kept.wait();
#ifdef STRETTO_WRONG
  comm.barrier();
#endif
}

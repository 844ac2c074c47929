// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A communicator is one rank's place in a group: there are no two of it.
// Expected: (abstract|deleted)

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  stretto::Communicator& same = comm;
  same.poll();
#ifdef STRETTO_WRONG
  stretto::Communicator other = comm;
  other.poll();
#endif
}

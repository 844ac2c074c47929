// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The mean of a vector over all processes:
//   build/release/bin/stretto run -n 4 -- build/release/bin/01_all_reduce

#include <cstdio>

#include "stretto/stretto.h"

int main() {
  auto comm = stretto::join();  // Rank, size, peers: from the launcher.
  auto gradients = comm->allocate<float>(std::size_t{1} << 20);  // Shared with this host's ranks.
  for (float& value : gradients) value = static_cast<float>(comm->rank().value());

  stretto::Work work = comm->all_reduce(gradients, {.op = stretto::ReduceOp::mean});
  // Whatever is computed here overlaps with the communication.
  work.wait();  // Throws stretto::PeerLost, Timeout, Mismatch, ...

  std::printf("rank %d of %d: the mean rank is %g\n", comm->rank().value(), comm->size(),
              static_cast<double>(gradients[0]));
}

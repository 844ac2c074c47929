// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Uses an installed stretto like another project's program: catches a failure, and computes the sum
// of all ranks.

#include <cstdio>
#include <vector>

#include <stretto/stretto.h>

int main() {
  auto comm = stretto::join();
  std::vector<int> sum(1, comm->rank().value());
  try {
    comm->broadcast(sum, {.root = 2}).wait();
  } catch (const stretto::InvalidArgument&) {
    std::printf("rank %d: root 2 is refused, ", comm->rank().value());
  }
  comm->all_reduce(sum).wait();
  std::printf("the sum is %d\n", sum[0]);
}

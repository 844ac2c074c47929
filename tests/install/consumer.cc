// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Uses an installed stretto as somebody else's program would: the sum of all ranks.

#include <cstdio>
#include <vector>

#include <stretto/stretto.h>

int main() {
  auto comm = stretto::join();
  std::vector<int> sum(1, comm->rank().value());
  comm->all_reduce(sum).wait();
  std::printf("rank %d: the sum is %d\n", comm->rank().value(), sum[0]);
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A span of constant elements is no output, even of a variable.
// Expected: no matching (member )?function
// Expected: is_const_v

#include <span>
#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  const std::vector<float> input(3);
  std::vector<float> output(3);
  comm.all_reduce(std::span(input), std::span(output)).wait();
#ifdef STRETTO_WRONG
  comm.recv(std::span(input), {.from = 1}).wait();
#endif
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a batch receives into must not be constant either.
// Expected: no matching (member )?function
// Expected: is_const_v

#include <vector>

#include "stretto/communicator/communicator.h"

void use(stretto::Communicator& comm) {
  std::vector<float> data(3);
  const stretto::Transfer transfer[] = {stretto::Transfer::recv(data, 1)};
  comm.batch_send_recv(transfer).wait();
#ifdef STRETTO_WRONG
  const std::vector<float> constant(3);
  (void)stretto::Transfer::recv(constant, 1);
#endif
}

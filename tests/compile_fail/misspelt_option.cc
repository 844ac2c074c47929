// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// An option of DistributedDataParallel that does not exist is named.
// Expected: DistributedDataParallelOptions.*find_unused

#include "stretto/torch/options.h"

stretto::DistributedDataParallelOptions options() {
#ifdef STRETTO_WRONG
  return stretto::DistributedDataParallelOptions{.find_unused = true};
#else
  return stretto::DistributedDataParallelOptions{.find_unused_parameters = true};
#endif
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// stretto for libtorch: DistributedDataParallel, on top of the library without torch.

#include "stretto/stretto.h"
#include "stretto/torch/distributed_data_parallel.h"

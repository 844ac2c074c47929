// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// stretto for libtorch, on top of the library without torch: DistributedDataParallel,
// ParameterAveraging, ShardedOptimizer, SyncBatchNorm, collectives on tensors.

#include "stretto/reducer/bucket_size.h"
#include "stretto/reducer/timeline.h"
#include "stretto/stretto.h"
#include "stretto/torch/buffer_hook.h"
#include "stretto/torch/distributed_data_parallel.h"
#include "stretto/torch/joinable.h"
#include "stretto/torch/optimizer_state.h"
#include "stretto/torch/parameter_averaging.h"
#include "stretto/torch/parameter_hook.h"
#include "stretto/torch/reproducible_gradients.h"
#include "stretto/torch/sharded_optimizer.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch/tensors.h"

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"

namespace stretto {

// The elements of a tensor, in the order in which they lie in memory, for every operation that
// takes a buffer: `comm.all_gather(view_of(input), view_of(output))`. The tensor must be on the
// CPU, strided, of a type in docs/dtypes.md, and fill its memory without gaps (contiguous,
// channels-last, transposed as a whole): throws InvalidArgument if not. It must live as long as the
// operation, and have the same strides on all ranks.
View view_of(const torch::Tensor& tensor);

// In place. A metric, say: `all_reduce(comm, loss, {.op = ReduceOp::mean}).wait()`.
Work all_reduce(Communicator& communicator, torch::Tensor& tensor,
                const AllReduceOptions& options = {});
Work broadcast(Communicator& communicator, torch::Tensor& tensor,
               const BroadcastOptions& options = {});

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"

namespace stretto {

// The elements of a tensor, in the order in which they lie in memory. Every operation that takes a
// buffer takes a tensor: `comm.all_reduce(loss, {.op = ReduceOp::mean}).wait()`. The tensor must be
// on the CPU, strided, of a type in docs/dtypes.md, and fill its memory without gaps (contiguous,
// channels-last, transposed as a whole): throws InvalidArgument if not. It must live as long as the
// operation, and have the same strides on all ranks.
View view_of(const torch::Tensor& tensor);

template <>
struct ViewOf<torch::Tensor> {
  static View view(const torch::Tensor& tensor) { return view_of(tensor); }
};

}  // namespace stretto

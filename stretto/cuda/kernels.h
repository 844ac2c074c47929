// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/cuda/reduction.h"

namespace stretto::cuda {

// Begins a reduction on a stream (a cudaStream_t) of the device that is current; or, where the
// operands have a factor, a product with that. Returns the error of the CUDA runtime, 0 if there is
// none, or kNoKernel.
using Reduce = int (*)(DType dtype, DType output, ReduceOp op, const Operands* operands,
                       void* stream);
inline constexpr int kNoKernel = -1;

// The library of our kernels exports it under a name that changes with what is above. Nothing else
// needs nvcc to be built, or the CUDA runtime.
#define STRETTO_CUDA_REDUCE stretto_cuda_reduce_2
inline constexpr const char* kReduce = "stretto_cuda_reduce_2";

}  // namespace stretto::cuda

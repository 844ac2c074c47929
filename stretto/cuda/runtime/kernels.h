// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/cuda/reduction.h"

namespace stretto::cuda {

// What runs on a device. Each function begins its work on a stream (a cudaStream_t) of the device
// that is current, and returns the error of the CUDA runtime, 0 if there is none.

// Whether there is a kernel for this reduction.
bool has_reduction_kernel(DType dtype, DType output, ReduceOp op);
// One that has.
int launch_reduction(DType dtype, DType output, ReduceOp op, const Operands& operands,
                     void* stream);

}  // namespace stretto::cuda

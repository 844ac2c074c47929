// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// Whether sparse tensors of this type are added up.
bool has_sparse_sum(at::ScalarType type);

// Adds up everybody's sparse COO tensors, in place: collective, blocking. `op` is sum or mean.
// Throws ValueError on all ranks, before any is changed, where their dimensions differ; else what
// all_reduce_rows() throws.
void all_reduce_sparse(Communicator& comm, at::Tensor& tensor, ReduceOp op,
                       const std::optional<Duration>& timeout);

}  // namespace stretto::c10d_backend

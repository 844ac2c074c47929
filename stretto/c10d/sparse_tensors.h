// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// Whether sparse tensors of this type can be added up.
bool has_sparse_sum(at::ScalarType type);

// Reduces the sparse COO tensors of all ranks, in place. Collective; blocks. `op` is sum or mean.
// Throws InvalidArgument on all ranks, before any tensor is changed, if their dimensions differ or
// have more than 2^32 - 1 sparse places; else as all_reduce_rows().
void all_reduce_sparse(Communicator& comm, at::Tensor& tensor, ReduceOp op,
                       const std::optional<Duration>& timeout);

}  // namespace stretto::c10d_backend

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto::ddp {

// A parameter or buffer with its name in the module ("layer1.0.conv.weight").
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// The names of parameters of `module` whose gradients will be sparse: the weights of Embedding and
// EmbeddingBag with sparse = true.
std::vector<std::string> sparse_parameter_names(const torch::nn::Module& module);

// Throws InvalidArgument if a parameter is not on the CPU, is not of f32 or f64, or is a scalar.
// Call it before reduce_sparse_gradients(): there other ranks would wait for one that throws.
void check_sparse_gradients(const std::vector<NamedTensor>& parameters);

// Replaces the gradients of `parameters` (COO, dense or undefined) by their means over all ranks,
// times `scale`: COO with one sparse dimension. Absent rows count as zero. A gradient that no rank
// has stays as it is; if any rank has one, even without rows, all ranks with data get it.
// Collective, blocks. `with_data` is false if this rank has nothing to contribute; its gradients
// then stay as they are, until the end of join() gives it those of another rank.
void reduce_sparse_gradients(Communicator& communicator, std::vector<NamedTensor>& parameters,
                             bool with_data, double scale, const std::optional<Duration>& timeout);

}  // namespace stretto::ddp

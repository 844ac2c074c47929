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

// Throws InvalidArgument if a parameter is not of floats or doubles, or is a scalar: a rank cannot
// find that out inside of what follows, where others wait.
void check_sparse_gradients(const std::vector<NamedTensor>& parameters);

// Makes the gradients of some parameters (COO, or undefined) the mean over all ranks, where absent
// rows count as zero, with one sparse dimension. A gradient that no rank has stays as it is. One
// that some rank has, even without rows, all ranks with data get; a dense one becomes sparse.
// Collective, blocks. `with_data`: false if this rank has nothing to contribute; its gradients stay
// as they are, until the end of join() gives it those of another rank. `scale` multiplies the
// means.
void reduce_sparse_gradients(Communicator& communicator, std::vector<NamedTensor>& parameters,
                             bool with_data, double scale, const std::optional<Duration>& timeout);

}  // namespace stretto::ddp

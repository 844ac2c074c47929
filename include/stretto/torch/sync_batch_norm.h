// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Batch normalisation over the whole batch of all ranks instead of each rank's part: a model trains
// like in one process, however small the parts are. Takes inputs [N, C, ...]; parts may have
// different N, also none. Parameters, buffers and defaults are those of torch::nn::BatchNorm, so
// either reads the other's checkpoints. In training mode forward() and its backward pass each block
// for one small operation; all ranks must run them in the same order. In evaluation mode it is
// local. The communicator must outlive it.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(Communicator& communicator, std::int64_t features,
                    const torch::nn::BatchNormOptions& options = torch::nn::BatchNormOptions(0));
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor running_mean;
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  void track(const torch::Tensor& mean, const torch::Tensor& variance, double count);

  Communicator* communicator_;
  std::int64_t features_;
  torch::nn::BatchNormOptions options_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/waits_in_backward.h"

namespace stretto {

// Batch normalisation over the whole batch of all ranks instead of each rank's part: a model trains
// like in one process, however small the parts are. Takes inputs [N, C, ...]; N may differ between
// ranks, and may be 0. Parameters, buffers and defaults are those of torch::nn::BatchNorm, so each
// can read the other's checkpoints. In training mode forward() and its backward pass each block for
// one small operation; all ranks must run them in the same order, whatever else they do between
// them. In evaluation mode it is local.
//
// It uses a communicator of its own, because gradients that a DistributedDataParallel reduces in
// the same backward pass may be ready before this layer runs on one rank, and after it on another.
//
// A clone() shares the communicator, so all ranks must run the two in the same order.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // Makes a communicator of its own, of all ranks of `communicator`. Collective, blocks.
  SyncBatchNormImpl(Communicator& communicator, std::int64_t features,
                    const torch::nn::BatchNormOptions& settings = torch::nn::BatchNormOptions(0));
  // Uses the communicator `own`, which layers of a model may share; nothing else may use it. Not
  // collective.
  SyncBatchNormImpl(std::shared_ptr<Communicator> own, std::int64_t features,
                    const torch::nn::BatchNormOptions& settings = torch::nn::BatchNormOptions(0));
  // These three and `options` are the same as in torch::nn::BatchNorm.
  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  torch::Tensor forward(const torch::Tensor& input);
  // Uses another communicator from the next forward pass on, made or taken as by the constructors;
  // for training that goes on without a lost rank. Not while a forward or backward pass runs.
  void set_communicator(Communicator& communicator);  // Collective, blocks.
  void set_communicator(std::shared_ptr<Communicator> own);
  // Bounds each operation. Default: the communicator's timeout. A DistributedDataParallel around it
  // sets its own option timeout, if there is one.
  void set_timeout(std::optional<Duration> timeout) { timeout_ = timeout; }
  // Aborts the communicator (Communicator::abort()), so that other ranks do not wait in forward or
  // backward. The same follows from an abort() of the communicator from which this one was made,
  // and from an exception in a backward pass of a DistributedDataParallel around it.
  void abort(const std::string& reason) { communicator_->abort(reason); }

  torch::nn::BatchNormOptions options;
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor running_mean;
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  void track(const torch::Tensor& mean, const torch::Tensor& variance, double count);

  std::shared_ptr<Communicator> communicator_;
  std::optional<Duration> timeout_;
  ddp::WaitsInBackward waits_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace stretto

namespace stretto::ddp {

// The layers of SyncBatchNorm in `module`, including `module` itself.
std::vector<SyncBatchNormImpl*> sync_batch_norms_of(torch::nn::Module& module);

}  // namespace stretto::ddp

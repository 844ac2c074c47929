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
// like in one process, however small the parts are. Takes inputs [N, C, ...]; parts may have
// different N, also none. Parameters, buffers and defaults are those of torch::nn::BatchNorm, so
// either reads the other's checkpoints. In training mode forward() and its backward pass each block
// for one small operation; all ranks must run them in the same order, whatever else they do between
// them. In evaluation mode it is local.
//
// It uses a communicator of its own: gradients that a DistributedDataParallel reduces in the same
// backward pass may be ready before or after it, and not alike on all ranks.
//
// A clone() shares the communicator, so all ranks must run the two in the same order.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // Makes that communicator, of all ranks of `communicator`: collective, blocks.
  SyncBatchNormImpl(Communicator& communicator, std::int64_t features,
                    const torch::nn::BatchNormOptions& settings = torch::nn::BatchNormOptions(0));
  // The same with one that is there: layers of a model may share it, and nothing else may use it.
  // Not collective.
  SyncBatchNormImpl(std::shared_ptr<Communicator> own, std::int64_t features,
                    const torch::nn::BatchNormOptions& settings = torch::nn::BatchNormOptions(0));
  // These three and `options` are as torch::nn::BatchNorm has them.
  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  torch::Tensor forward(const torch::Tensor& input);
  // From the next forward pass on it uses another communicator, as its constructors do; for who
  // goes on without a lost rank. Not while a forward or backward pass runs.
  void set_communicator(Communicator& communicator);  // Collective, blocks.
  void set_communicator(std::shared_ptr<Communicator> own);
  // Bounds each operation. Default: the communicator's. A DistributedDataParallel around it sets
  // its own.
  void set_timeout(std::optional<Duration> timeout) { timeout_ = timeout; }
  // Ends what other ranks wait for in forward and backward, as Communicator::abort() does. So does
  // an abort() of the communicator that this one's was made of, and an exception in a backward pass
  // of a DistributedDataParallel around it.
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

// Those in `module`, itself included.
std::vector<SyncBatchNormImpl*> sync_batch_norms_of(torch::nn::Module& module);

}  // namespace stretto::ddp

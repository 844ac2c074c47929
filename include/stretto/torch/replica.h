// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"
#include "stretto/reducer/reducer.h"
#include "stretto/reducer/state_broadcast.h"
#include "stretto/torch/hook.h"
#include "stretto/torch/options.h"

namespace stretto::ddp {

// A parameter or buffer with its name in the module ("layer1.0.conv.weight").
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// This rank's copy of a model, kept equal to those of the other ranks: all of
// DistributedDataParallel that does not depend on the type of the module. See there for the
// contract of each call.
class Replica {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
          DistributedDataParallelOptions options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  void before_forward();
  void enter_no_sync() { ++no_sync_depth_; }
  void leave_no_sync() { --no_sync_depth_; }
  void verify_replicas();
  std::uint64_t parameter_hash() const;
  const StepStatistics& last_step() const { return reducer_->last_step(); }
  const reducer::BucketPlan& bucket_plan() const { return reducer_->plan(); }

 private:
  void check_tensors() const;
  void verify_descriptions();
  void create_reducer();
  void create_views();
  void adopt_initial_gradients();
  void on_gradient(std::size_t index);
  void adopt_gradient(std::size_t index);
  void end_of_backward();

  std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  std::vector<NamedTensor> parameters_;  // Without repetition, in the module's order.
  std::vector<NamedTensor> buffers_;
  std::vector<NamedTensor> trained_;  // Parameters that require grad: index i is gradient i.
  std::unique_ptr<Reducer> reducer_;
  std::vector<torch::Tensor> views_;  // trained_[i]'s gradient, in its bucket.
  reducer::StateBroadcast buffer_broadcast_;
  int no_sync_depth_ = 0;
  int last_backward_ = -1;           // The last pass that end_of_backward() was queued for.
  std::vector<GradientHook> hooks_;  // Last: they call into all of the above.
};

}  // namespace stretto::ddp

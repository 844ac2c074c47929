// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"
#include "stretto/reducer/reducer.h"
#include "stretto/torch/options.h"
#include "stretto/torch/replica.h"

namespace stretto {

template <class Module>
concept TorchModule = std::derived_from<Module, torch::nn::Module>;

// While it lives, backward passes of its DistributedDataParallel add to the gradients of this rank
// and send nothing. Guards may be nested. Must not outlive the DistributedDataParallel.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(ddp::Replica& replica) : replica_(replica) { replica_.enter_no_sync(); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync() { replica_.leave_no_sync(); }

 private:
  ddp::Replica& replica_;
};

// Trains copies of a module on several ranks as one: every rank runs forward and backward on its
// own part of the batch, and when backward() returns, each parameter's grad() is the mean over all
// ranks, the same bits everywhere. Gradients are reduced while backward still runs, bucket by
// bucket.
//
//   stretto::DistributedDataParallel ddp(model, *communicator);
//   auto loss = torch::nll_loss(ddp.forward(data), target);
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// `Module` is deduced from a module holder (TORCH_MODULE), a shared pointer or a reference. All
// parameters and buffers are dense and on the CPU. grad() of each parameter is a view of registered
// memory that other ranks read and write during backward(); it may be changed in place, cleared by
// zero_grad() of either kind, or replaced between passes.
//
// All ranks must build it, run forward passes in training mode and backward passes in the same
// order. Failures of other ranks come out of forward() and backward() as the exceptions of
// base/error.h; the gradients are then undefined, the parameters are not changed.
//
// Threads: one thread at a time, which may change. The communicator must outlive it.
template <TorchModule Module>
class DistributedDataParallel {
 public:
  // Verifies that all ranks have the same model (number, names, shapes, dtypes, strides and
  // requires_grad of parameters and buffers) and the same options, then makes rank 0's values
  // everyone's. Collective: blocks until all ranks have called. Throws Mismatch on all ranks with
  // the first difference; InvalidArgument for a module that cannot be trained this way.
  DistributedDataParallel(std::shared_ptr<Module> module, Communicator& communicator,
                          DistributedDataParallelOptions options = {})
      : module_(std::move(module)),
        replica_(std::make_unique<ddp::Replica>(module_, communicator, std::move(options))) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& module, Communicator& communicator,
                          DistributedDataParallelOptions options = {})
      : DistributedDataParallel(module.ptr(), communicator, std::move(options)) {}
  // `module` must outlive this object.
  DistributedDataParallel(Module& module, Communicator& communicator,
                          DistributedDataParallelOptions options = {})
      : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module),
                                communicator, std::move(options)) {}

  // The module's forward(). In training mode it first makes rank 0's buffers everyone's (if there
  // are buffers and the option is on), and blocks for that.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    replica_->before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // For gradient accumulation: `{ auto guard = ddp.no_sync(); loss.backward(); }`. The next
  // backward pass outside reduces the sum of what has been accumulated. Counts when backward()
  // runs.
  NoSync no_sync() { return NoSync(*replica_); }

  const std::shared_ptr<Module>& module() const { return module_; }

  // Throws Mismatch, on all ranks, unless all parameters have the same bits everywhere; it names
  // the first that differs, and where. Collective, blocks.
  void verify_replicas() { replica_->verify_replicas(); }
  // A hash of all parameters of this rank, equal on ranks whose parameters have the same bits.
  std::uint64_t parameter_hash() const { return replica_->parameter_hash(); }

  // What the last backward pass that was not inside no_sync() cost.
  const StepStatistics& last_step() const { return replica_->last_step(); }
  // Which gradients travel together; indices count the parameters that require grad, without
  // repetition, in the module's order.
  const reducer::BucketPlan& bucket_plan() const { return replica_->bucket_plan(); }

 private:
  std::shared_ptr<Module> module_;
  std::unique_ptr<ddp::Replica> replica_;
};

}  // namespace stretto

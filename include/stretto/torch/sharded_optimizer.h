// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/state_exchange.h"
#include "stretto/torch/joinable.h"

namespace stretto {

// Divides the state of an optimizer among the ranks (ZeRO, stage 1; ZeroRedundancyOptimizer in
// PyTorch). Each rank owns about as many bytes of parameters as the others. It steps its own
// parameters only, keeps the state (the moments of Adam, say) of these only, and gets the other
// parameters from their owners. All parameters have the same bits as with the optimizer alone.
//
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);
//   stretto::ShardedOptimizer sharded(optimizer, *communicator);
//   loss.backward();  // Of a DistributedDataParallel: gradients are equal on all ranks.
//   sharded.step();
//
// Works for every libtorch optimizer that treats parameters one by one, so not for LBFGS. All
// parameters are dense, on the CPU or on devices. If they are on the device of a communicator with
// the backend "nccl" or "cuda", they are sent from device to device, else through memory of the
// host. Change settings, such as learning rates, on `optimizer` itself, on all ranks alike.
//
// Inside join(), where UnevenInputsOptions::joinables must name it, a rank without data goes on
// stepping its parameters, with the gradients and settings of the lowest rank that has data.
// OptimizerOptions::serialize() must write and read the settings, as for libtorch's optimizers;
// otherwise join() throws InvalidArgument.
//
// Threads: one at a time. Both `optimizer` and `communicator` must outlive it.
class ShardedOptimizer : public Joinable {
 public:
  // Verifies that all ranks have the same parameters, and drops the state of parameters that other
  // ranks own. Collective, blocks. `timeout` bounds each message; default: the communicator's.
  // Throws InvalidArgument for LBFGS, without parameters, and for parameters that are not dense or
  // have no memory; other ranks then throw Mismatch with the reason. Throws Mismatch on all ranks,
  // with the first difference, if parameters differ.
  ShardedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                   const std::optional<Duration>& timeout = std::nullopt);

  // Steps the parameters that this rank owns, and sends them to all ranks. Collective, blocks.
  // Throws InvalidArgument if the optimizer has got other parameters since. If the optimizer itself
  // throws, step() aborts the communicator, so that other ranks do not wait, and throws the same.
  // If communication fails, some parameters are stepped, and some are not.
  void step();
  void zero_grad(bool set_to_none = true) { optimizer_.zero_grad(set_to_none); }

  // Gives all ranks the state of all parameters, until the next step(). Then `torch::save` of the
  // optimizer itself writes the same file as without sharding, and any number of ranks can read it.
  // Collective, blocks. To resume, `torch::load` the optimizer on all ranks; the next step() drops
  // the state of parameters that other ranks own. Throws InvalidArgument for optimizers other than
  // SGD, Adam, AdamW, RMSprop and Adagrad.
  void gather_state();

  // The owner of each parameter, in the order of the optimizer's groups. A parameter that is listed
  // twice counts where it comes first.
  const std::vector<Rank>& owners() const { return owners_; }

 private:
  void check_parameters() const;
  bool is_own(std::size_t index) const { return owners_[index] == communicator().rank(); }
  void begin() override;
  void follow(std::uint64_t what) override;
  void finish(Rank last) override;
  std::string describe(std::uint64_t what) const override;
  bool shares_out(const torch::optim::Optimizer& optimizer) const override {
    return &optimizer == &optimizer_;
  }
  void step_together();
  void exchange();
  void gather_together();
  ByteVector inputs_of(Rank rank) const;
  std::vector<torch::Tensor> borrow_gradients();
  void forget_foreign_state();
  void receive_state_of(Rank rank);

  torch::optim::Optimizer& optimizer_;
  const std::optional<Duration> timeout_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Rank> owners_;              // Of parameters_.
  const torch::Device device_;            // Of the first parameter.
  std::unique_ptr<BucketMemory> memory_;  // Null: parameters are sent through memory of the host.
  reducer::StateExchange exchange_;
};

}  // namespace stretto

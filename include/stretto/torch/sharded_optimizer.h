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

// Shares the state of an optimizer out over the ranks (ZeRO, stage 1; ZeroRedundancyOptimizer in
// PyTorch): each rank steps about as many bytes of parameters as the others, keeps the state (the
// moments of Adam, say) of those only, and gets the other parameters from their ranks. The
// parameters are those of the same optimizer without it, bit by bit.
//
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);
//   stretto::ShardedOptimizer sharded(optimizer, *communicator);
//   loss.backward();  // Of a DistributedDataParallel: gradients are equal on all ranks.
//   sharded.step();
//
// For every libtorch optimizer that treats parameters one by one, so not for LBFGS. All parameters
// are dense, on the CPU or on devices. On the device of a communicator with the backend "nccl" or
// "cuda" they travel from device to device, else through memory of the host. Settings, such as
// learning rates, are changed on `optimizer` itself, on all ranks alike.
//
// Inside join() (UnevenInputsOptions::joinables names it) a rank that has no data left goes on to
// step its parameters, with the gradients and settings of the lowest rank that has data. The
// settings must be such that OptimizerOptions::serialize() writes and reads them, as those of
// libtorch's optimizers: join() throws InvalidArgument for others.
//
// Threads: one at a time. Both `optimizer` and `communicator` must outlive it.
class ShardedOptimizer : public Joinable {
 public:
  // Verifies that all ranks have the same parameters, and forgets the state of those that are
  // another rank's. Collective, blocks. `timeout`: of each message; default: the communicator's.
  // Throws InvalidArgument for LBFGS, and for parameters that are none, not dense, or without
  // memory; else Mismatch, on all ranks, with the first difference or what another rank refuses.
  ShardedOptimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                   const std::optional<Duration>& timeout = std::nullopt);

  // Steps this rank's parameters, and makes them everyone's. Collective, blocks. Throws
  // InvalidArgument if the optimizer has got other parameters, and what the optimizer itself
  // throws, which aborts the communicator, so that others do not wait; what fails in communication
  // leaves parameters behind of which some are stepped, and some not.
  void step();
  void zero_grad(bool set_to_none = true) { optimizer_.zero_grad(set_to_none); }

  // Makes the state of all parameters everyone's, until the next step(): then `torch::save` of the
  // optimizer itself writes the file of one without this, and any number of ranks can read it.
  // Collective, blocks. To resume: `torch::load` the optimizer on all ranks; the next step()
  // forgets what is another rank's. Throws InvalidArgument for optimizers other than libtorch's.
  void gather_state();

  // Whose each parameter is, in the order of the optimizer's groups, where it comes first.
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
  std::unique_ptr<BucketMemory> memory_;  // Where the communicator reaches parameters; else none.
  reducer::StateExchange exchange_;
};

}  // namespace stretto

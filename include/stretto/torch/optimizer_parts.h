// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/communicator/byte_exchange.h"
#include "stretto/communicator/communicator.h"

// How a libtorch optimizer is made to step some of its parameters at a time. The settings of groups
// and the state of each parameter are the optimizer's own throughout, so parts together have the
// bits of one step() of the whole: for every optimizer that treats parameters one by one.
namespace stretto::ddp {

// Throws InvalidArgument if a step of `optimizer` cannot be done in parts: LBFGS.
void check_steps_in_parts(const torch::optim::Optimizer& optimizer);

// All parameters, group by group, each once: a module lists a layer that two of its parts have
// registered under both names.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

// optimizer.load(archive), without what libtorch would leave: the state of parameters of which the
// archive has none, as they had not been stepped when it was written; and none of a parameter that
// is listed twice. What throws leaves the state as it was.
void load_whole(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive);

// Throws InvalidArgument if the optimizer has a state, and its class no save() that writes any.
void check_is_saved(const torch::optim::Optimizer& optimizer);

// What an OutputArchive has written, with its tensors on `device`.
torch::serialize::InputArchive archive_of(std::span<const std::byte> bytes, torch::Device device);

inline constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();
// What `root` has packed into `text`, of any length, on all ranks. Collective, blocks.
ByteVector broadcast_text(Communicator& communicator, const std::string& text, Rank root,
                          const std::optional<Duration>& timeout);

using Parts = std::vector<std::vector<torch::Tensor>>;  // Parameters, for each group.

// optimizer.step() for those parameters of which `chosen` is true, and which `spare` names
// afterwards: memory that is kept for the next time.
void step_part(torch::optim::Optimizer& optimizer,
               const std::function<bool(const torch::Tensor&)>& chosen, Parts& spare);

// Steps parameters while a backward pass still runs, and the others at its end. Once it has seen a
// pass it allocates nothing.
class StepInBackward {
 public:
  // Of a model with these `parameters`. Throws InvalidArgument if one that another model trains is
  // the optimizer's: its gradient is not reduced when this model's are. `optimizer` must outlive
  // this.
  StepInBackward(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters);

  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  // Those of `parameters` that are the optimizer's. Where the pass has yet to read their values,
  // autograd then throws.
  void step(const std::vector<torch::Tensor>& parameters);
  // The rest of the optimizer's parameters, as its own step() does: without those that have no
  // gradient. Throws what the constructor does, as the other model may have come since.
  void finish();
  // The pass has failed.
  void forget() { stepped_.clear(); }

 private:
  using Pointers = std::vector<const void*>;  // To tensors' implementations, in order.

  void check_not_of_others() const;

  torch::optim::Optimizer& optimizer_;
  Pointers own_;      // The model's.
  Pointers stepped_;  // In this pass.
  Pointers now_;      // In this step().
  Parts spare_;
};

}  // namespace stretto::ddp

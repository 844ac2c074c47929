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

// Lets a libtorch optimizer step some of its parameters at a time. It uses its own settings of
// groups and state of parameters for each part, so all parts together give the bits of one step()
// of all parameters, for every optimizer that treats parameters one by one.
namespace stretto::ddp {

// Throws InvalidArgument if a step of `optimizer` cannot be done in parts: LBFGS.
void check_steps_in_parts(const torch::optim::Optimizer& optimizer);

// Returns all parameters, group by group, each once. A parameter may be listed twice: a module
// lists a layer that two of its parts have registered under both names.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

// Does optimizer.load(archive), and corrects two results of libtorch's. A parameter without state
// in the archive, because it had not been stepped, gets no state (libtorch leaves the old one). A
// parameter that is listed twice gets its state (libtorch loses it). If loading throws, the state
// is as before.
void load_whole(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive);

// Throws InvalidArgument if the optimizer has a state and save() of its class writes nothing.
void check_is_saved(const torch::optim::Optimizer& optimizer);

// Opens `bytes`, which an OutputArchive has written, and puts its tensors on `device`.
torch::serialize::InputArchive archive_of(std::span<const std::byte> bytes, torch::Device device);

inline constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();
// Returns the `text` of rank `root`, of any length, on all ranks. Collective, blocks.
ByteVector broadcast_text(Communicator& communicator, const std::string& text, Rank root,
                          const std::optional<Duration>& timeout);

using Parts = std::vector<std::vector<torch::Tensor>>;  // Parameters, for each group.

// Does optimizer.step() for the parameters for which `chosen` returns true. Afterwards `spare`
// lists them; pass it again next time, so that its memory is used again.
void step_part(torch::optim::Optimizer& optimizer,
               const std::function<bool(const torch::Tensor&)>& chosen, Parts& spare);

// Steps some parameters while a backward pass still runs, and the others at its end. Allocates
// nothing after the first pass.
class StepInBackward {
 public:
  // `parameters`: those of the model. Throws InvalidArgument for LBFGS, and if the optimizer has a
  // parameter that another model trains, whose gradient is not reduced together with this model's.
  // `optimizer` must outlive this object.
  StepInBackward(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters);

  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  // Steps those of `parameters` that the optimizer has. If the pass still needs their old values,
  // autograd then throws.
  void step(const std::vector<torch::Tensor>& parameters);
  // Steps the rest of the optimizer's parameters, like its own step(), which skips parameters
  // without a gradient. Throws as the constructor does: another model may have been built since.
  void finish();
  // To be called if the pass has failed.
  void forget() { stepped_.clear(); }

 private:
  using Pointers = std::vector<const void*>;  // To tensors' implementations, sorted.

  void check_not_of_others() const;

  torch::optim::Optimizer& optimizer_;
  Pointers own_;      // The model's.
  Pointers stepped_;  // In this pass.
  Pointers now_;      // In this step().
  Parts spare_;
};

}  // namespace stretto::ddp

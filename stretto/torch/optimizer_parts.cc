// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/optimizer_parts.h"

#include <utility>

#include "stretto/base/error.h"

namespace stretto::ddp {
namespace {

// While it lives, the optimizer has only the chosen parameters.
class Narrowed {
 public:
  Narrowed(torch::optim::Optimizer& optimizer,
           const std::function<bool(const torch::Tensor&)>& chosen)
      : optimizer_(optimizer) {
    for (auto& group : optimizer_.param_groups()) {
      std::vector<torch::Tensor> some;
      for (const torch::Tensor& parameter : group.params()) {
        if (chosen(parameter)) some.push_back(parameter);
      }
      all_.push_back(std::exchange(group.params(), std::move(some)));
    }
  }
  Narrowed(const Narrowed&) = delete;
  Narrowed& operator=(const Narrowed&) = delete;
  ~Narrowed() {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(all_[i]);
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<torch::Tensor>> all_;
};

}  // namespace

void check_steps_in_parts(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  throw InvalidArgument(Status(StatusCode::invalid_argument,
                               "LBFGS looks at all parameters at once and calls the model again in "
                               "a step, so it cannot be stepped in parts"));
}

std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> result;
  for (const auto& group : optimizer.param_groups()) {
    result.insert(result.end(), group.params().begin(), group.params().end());
  }
  return result;
}

void step_part(torch::optim::Optimizer& optimizer,
               const std::function<bool(const torch::Tensor&)>& chosen) {
  const Narrowed narrowed(optimizer, chosen);
  optimizer.step();
}

StepInBackward::StepInBackward(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  check_steps_in_parts(optimizer);
}

void StepInBackward::step(const std::vector<torch::Tensor>& parameters) {
  std::unordered_set<const void*> now;
  for (const torch::Tensor& parameter : parameters) now.insert(parameter.unsafeGetTensorImpl());
  stepped_.insert(now.begin(), now.end());
  step_part(optimizer_, [&](const torch::Tensor& parameter) {
    return now.contains(parameter.unsafeGetTensorImpl());
  });
}

void StepInBackward::finish() {
  step_part(optimizer_, [&](const torch::Tensor& parameter) {
    return !stepped_.contains(parameter.unsafeGetTensorImpl());
  });
  stepped_.clear();
}

}  // namespace stretto::ddp

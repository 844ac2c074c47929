// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "bench/drivers/ddp_models.h"
#include "stretto/torch.h"
#include "tests/device/greater.h"

// The three models of ./dev bench ddp, trained on a device and on the CPU from the same numbers.
namespace stretto::testing {

inline constexpr int kLossSteps = 20;
// Of the first loss, between the two curves.
inline constexpr double kLossDifference = 0.01;

class CurveOf {
 public:
  CurveOf(const std::string& name, torch::Device device, Communicator& communicator)
      : model_(bench::make_model(name, false)),
        batch_(bench::make_batch(name, false, communicator.rank().value())),
        optimizer_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
        ddp_(on_device(model_, device), communicator) {
    batch_ = {batch_.input.to(device), batch_.target.to(device)};
  }
  double step() {
    optimizer_.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(ddp_.forward(batch_.input), batch_.target);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

 private:
  using Model = std::shared_ptr<bench::TrainedModel>;
  static Model on_device(Model model, torch::Device device) {
    model->to(device);
    return model;
  }
  Model model_;
  bench::Batch batch_;
  torch::optim::SGD optimizer_;
  DistributedDataParallel<bench::TrainedModel> ddp_;
};

inline void compare_losses(const std::string& name, torch::Device device,
                           Communicator& communicator) {
  CurveOf there(name, device, communicator);
  CurveOf here(name, torch::kCPU, communicator);
  double first = 0, last = 0, last_here = 0, difference = 0;
  for (int step = 0; step < kLossSteps; ++step) {
    last = there.step();
    last_here = here.step();
    if (step == 0) first = last;
    difference = greater(difference, std::abs(last - last_here) / first);
  }
  std::printf(
      "{\"check\": \"loss of %s\", \"rank\": %d, \"first\": %.4f, \"last\": %.4f, \"last_on_cpu\": "
      "%.4f, \"largest_difference\": %.2g}\n",
      name.c_str(), communicator.rank().value(), first, last, last_here, difference);
  if (!(difference <= kLossDifference))
    throw std::runtime_error("the losses of " + name + " differ");
  if (!(last < first)) throw std::runtime_error("the loss of " + name + " does not fall");
}

// Prints a line of JSON for each model, and throws where the curves are apart or do not fall.
inline void compare_all_losses(Communicator& communicator, torch::Device device) {
  // As exact as the CPU is.
  at::globalContext().setAllowTF32CuDNN(false);
  for (const char* model : {"mlp", "resnet", "transformer"}) {
    compare_losses(model, device, communicator);
  }
}

}  // namespace stretto::testing

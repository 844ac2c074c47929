// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job that trains the three models of ./dev bench ddp on a device and on the CPU, from
// the same numbers, for scripts/gpu_check.py:
//   loss_curves_rank_program DEVICE [--small]
// Prints a line of JSON for each model, with the first and the last loss of both, and ends with 1
// and a line that begins with "wrong" if the curves are further from each other anywhere than one
// percent of the first loss.

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "bench/drivers/ddp_models.h"
#include "stretto/torch.h"
#include "tests/end_to_end/rank_program.h"

namespace {

constexpr int kSteps = 20;
constexpr double kAllowed = 0.01;

class Trained {
 public:
  Trained(const std::string& name, bool small, torch::Device device,
          stretto::Communicator& communicator)
      : model_(stretto::bench::make_model(name, small)),
        batch_(stretto::bench::make_batch(name, small, communicator.rank().value())),
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
  using Model = std::shared_ptr<stretto::bench::TrainedModel>;
  static Model on_device(Model model, torch::Device device) {
    model->to(device);
    return model;
  }
  Model model_;
  stretto::bench::Batch batch_;
  torch::optim::SGD optimizer_;
  stretto::DistributedDataParallel<stretto::bench::TrainedModel> ddp_;
};

void compare(const std::string& name, bool small, torch::Device device,
             stretto::Communicator& communicator) {
  Trained there(name, small, device, communicator);
  Trained here(name, small, torch::kCPU, communicator);
  double first = 0, last = 0, last_here = 0, difference = 0;
  for (int step = 0; step < kSteps; ++step) {
    last = there.step();
    last_here = here.step();
    if (step == 0) first = last;
    difference = std::max(difference, std::abs(last - last_here) / first);
  }
  std::printf(
      "{\"check\": \"loss of %s\", \"rank\": %d, \"first\": %.4f, \"last\": %.4f, \"last_on_cpu\": "
      "%.4f, \"largest_difference\": %.2g}\n",
      name.c_str(), communicator.rank().value(), first, last, last_here, difference);
  if (!(difference <= kAllowed)) throw std::runtime_error("the losses of " + name + " differ");
  if (!(last < first)) throw std::runtime_error("the loss of " + name + " does not fall");
}

void run(const std::string& name, bool small) {
  // The linker leaves out what no function is called of.
  if (name == "cuda") (void)::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  // As exact as the CPU is.
  at::globalContext().setAllowTF32CuDNN(false);
  const auto communicator = stretto::join();
  const torch::Device device(name == "cpu" ? name : name + ":0");
  for (const char* model : {"mlp", "resnet", "transformer"}) {
    compare(model, small, device, *communicator);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3)
    return std::fputs("usage: loss_curves_rank_program DEVICE [--small]\n", stderr), 2;
  return stretto::testing::run_or_explain([&] { run(argv[1], argc > 2); });
}

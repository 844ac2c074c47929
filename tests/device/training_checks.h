// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/drivers/ddp_models.h"
#include "stretto/torch.h"
#include "tests/device/greater.h"

// Parts of training on a GPU besides gradients, which gpu_rank_program checks. Each function prints
// a line of JSON, or throws.
namespace stretto::testing {

inline void say_passed(const char* check, const Communicator& communicator) {
  std::printf("{\"check\": \"%s\", \"rank\": %d, \"ranks\": %d}\n", check,
              communicator.rank().value(), communicator.size());
}

inline torch::nn::Sequential dropping_net(torch::Device device, std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential net(torch::nn::Linear(256, 256), torch::nn::Tanh(), torch::nn::Dropout(0.2),
                            torch::nn::Linear(256, 64));
  net->to(device);
  return net;
}

// Draws a batch on the host, so that it is the same for all devices.
inline torch::Tensor batch_for(int step, int rank, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  return torch::randn({32, 256}).to(device);
}

inline void expect_bits(const char* what, const std::vector<torch::Tensor>& found,
                        const std::vector<torch::Tensor>& expected) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (torch::equal(found[i], expected[i])) continue;
    throw std::runtime_error(std::string(what) + ": parameter " + std::to_string(i) + " differs");
  }
}

// Compares with PyTorch's layer on the CPU, which sees all ranks' images.
inline void check_sync_batch_norm(Communicator& communicator, torch::Device device) {
  const int rank = communicator.rank().value(), ranks = communicator.size();
  torch::nn::BatchNorm2d reference(16);
  SyncBatchNorm layer(communicator, 16);
  layer->to(device);
  double greatest = 0;
  const auto compare = [&](const torch::Tensor& found, const torch::Tensor& expected) {
    greatest = greater(greatest, (found.cpu() - expected).abs().max().item<double>());
  };
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    torch::Tensor whole = torch::randn({4 * ranks, 16, 9, 9}) * 2 + 5;
    torch::Tensor part = whole.narrow(0, 4 * rank, 4).clone().to(device).requires_grad_();
    whole.requires_grad_();
    const torch::Tensor expected = reference->forward(whole), output = layer->forward(part);
    compare(output, expected.narrow(0, 4 * rank, 4));
    (expected.pow(2) * expected).mean().backward();
    ((output.pow(2) * output).mean() / ranks).backward();
    compare(part.grad(), whole.grad().narrow(0, 4 * rank, 4));
  }
  compare(layer->running_mean, reference->running_mean);
  compare(layer->running_var, reference->running_var);
  std::printf(
      "{\"check\": \"SyncBatchNorm\", \"rank\": %d, \"ranks\": %d, \"largest_difference\": %g}\n",
      rank, ranks, greatest);
  if (!(greatest < 1e-4)) throw std::runtime_error("SyncBatchNorm differs");
}

// Compares with the same optimizer without shards.
inline void check_sharded_optimizer(Communicator& communicator, torch::Device device) {
  const auto own = dropping_net(device, 1), twin = dropping_net(device, 1);
  torch::optim::Adam optimizer(own->parameters(), 1e-2), whole(twin->parameters(), 1e-2);
  ShardedOptimizer sharded(optimizer, communicator);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const auto mine = own->parameters(), others = twin->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const torch::Tensor gradient = torch::randn(mine[i].sizes()).to(device);
      mine[i].mutable_grad() = gradient;
      others[i].mutable_grad() = gradient.clone();
    }
    whole.step();
    sharded.step();
    expect_bits("ShardedOptimizer", mine, others);
  }
  sharded.gather_state();
  say_passed("ShardedOptimizer", communicator);
}

// Returns the parameters after steps `first` to 5. Saves the state after step 2 if `first` is 0;
// otherwise loads it before the first step.
inline std::vector<torch::Tensor> train(Communicator& communicator, torch::Device device, int first,
                                        const std::string& path) {
  const auto net = dropping_net(device, first == 0 ? 1 : 2);
  DistributedDataParallel ddp(net, communicator, {.codec = top_k({.density = 0.05})});
  torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
  if (first > 0) ddp.load_state(path, optimizer);
  for (int step = first; step < 6; ++step) {
    optimizer.zero_grad();
    // The random numbers of dropout must not depend on how batches are drawn.
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const torch::Tensor drawn = generator.get_state();
    const torch::Tensor batch = batch_for(step, communicator.rank().value(), device);
    generator.set_state(drawn);
    ddp.forward(batch).square().mean().backward();
    optimizer.step();
    if (first == 0 && step == 2) ddp.save_state(path, optimizer);
  }
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& each : ddp.parameters()) parameters.push_back(each.detach().clone());
  return parameters;
}

inline void check_saved_state(Communicator& communicator, torch::Device device) {
  // All ranks have the same launcher.
  const std::string path =
      std::filesystem::temp_directory_path() / ("gpu_rank_program." + std::to_string(::getppid()));
  const auto expected = train(communicator, device, 0, path);
  expect_bits("a state that was saved", train(communicator, device, 3, path), expected);
  std::filesystem::remove(path + ".rank" + std::to_string(communicator.rank().value()));
  say_passed("a state that is saved and loaded", communicator);
}

// The three models of ./dev bench ddp are trained on a device and on the CPU from the same numbers.
inline constexpr int kLossSteps = 20;
// The allowed difference of the two curves, as a fraction of the first loss.
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

// Prints a line of JSON for each model. Throws if its curves differ too much or do not fall.
inline void compare_all_losses(Communicator& communicator, torch::Device device) {
  // Convolutions must be as exact as on the CPU.
  at::globalContext().setAllowTF32CuDNN(false);
  for (const char* model : {"mlp", "resnet", "transformer"}) {
    compare_losses(model, device, communicator);
  }
}

}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job on a device, for scripts/gpu_check.py:
//   gpu_rank_program DEVICE
// DEVICE is "cuda", or another that PyTorch knows. Prints a line of JSON for each check, and ends
// with 1 and a line that begins with "wrong" if one has failed. What is compared is computed on the
// device twice: by gradients that are reduced there, and by others that are reduced on the host.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "stretto/torch.h"
#include "tests/end_to_end/rank_program.h"

namespace {

constexpr int kFeatures = 512;
constexpr int kSteps = 8;

torch::nn::Sequential make_model(torch::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int layer = 0; layer < 4; ++layer) {
    model->push_back(torch::nn::Linear(kFeatures, kFeatures));
    model->push_back(torch::nn::Tanh());
  }
  model->to(device);
  return model;
}

// The only wait for a device that all of PyTorch's have.
void wait_for(const torch::Tensor& tensor) { (void)tensor.flatten()[0].item<float>(); }

// A model and what reduces its gradients.
class Trained {
 public:
  Trained(stretto::Communicator& communicator, torch::Device device,
          stretto::DistributedDataParallelOptions options)
      : model_(make_model(device)), ddp_(model_, communicator, std::move(options)) {}

  // Returns the milliseconds of the backward pass, to the end of what the device does.
  double step(const torch::Tensor& batch) {
    ddp_.zero_grad();
    const torch::Tensor loss = ddp_.forward(batch).square().mean();
    wait_for(loss);
    const stretto::TimePoint begin = stretto::Clock::now();
    loss.backward();
    for (const torch::Tensor& parameter : model_->parameters()) wait_for(parameter.grad());
    return stretto::seconds(stretto::Clock::now() - begin) * 1e3;
  }
  double distance_to(const Trained& other) const {
    double greatest = 0;
    const auto own = model_->parameters(), others = other.model_->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const torch::Tensor between = (own[i].grad().cpu() - others[i].grad().cpu()).abs();
      greatest = std::max(greatest, between.max().item<double>());
    }
    return greatest;
  }

 private:
  torch::nn::Sequential model_;
  stretto::DistributedDataParallel<torch::nn::Sequential> ddp_;
};

struct Comparison {
  const char* name;
  stretto::DistributedDataParallelOptions on_device;
  stretto::DistributedDataParallelOptions on_host;
  double allowed;  // Between gradients, which are about 1e-4.
};

void compare(stretto::Communicator& communicator, torch::Device device, const Comparison& what) {
  Trained on_device(communicator, device, what.on_device);
  Trained on_host(communicator, device, what.on_host);
  double device_ms = 1e9, host_ms = 1e9, distance = 0;
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + communicator.rank().value()));
    const torch::Tensor batch = torch::randn({64, kFeatures}).to(device);
    device_ms = std::min(device_ms, on_device.step(batch));
    host_ms = std::min(host_ms, on_host.step(batch));
    distance = std::max(distance, on_device.distance_to(on_host));
  }
  std::printf(
      "{\"check\": \"%s\", \"rank\": %d, \"ranks\": %d, \"largest_difference\": %g, \"allowed\": "
      "%g, \"device_ms\": %.3f, \"host_ms\": %.3f}\n",
      what.name, communicator.rank().value(), communicator.size(), distance, what.allowed,
      device_ms, host_ms);
  if (!(distance <= what.allowed)) throw std::runtime_error(std::string(what.name) + " differs");
}

// A hook is handed over where the host is to do the same as the option codec does on the device.
void compare_all(stretto::Communicator& communicator, torch::Device device) {
  using namespace stretto;  // NOLINT: options.
  const auto by_host = [](std::shared_ptr<const Codec> codec) {
    return std::make_shared<CompressedReduction>(CompressionOptions{.codec = std::move(codec)});
  };
  compare(communicator, device,
          {"gradients as they are", {}, {.mean_division = MeanDivision::before_sum}, 1e-7});
  compare(communicator, device,
          {"bf16 hook",
           {.communication_hook = std::make_shared<Bf16Reduction>()},
           {.mean_division = MeanDivision::before_sum,
            .communication_hook = std::make_shared<Bf16Reduction>()},
           1e-5});
  const std::pair<const char*, std::shared_ptr<const Codec>> codecs[] = {
      {"codec top_k", top_k()},
      {"codec top_k, bf16 values", top_k({.values = ValueFormat::bf16})},
      {"codec f16", f16()},
      {"codec bf16", bf16()},
      {"codec int8", int8()}};
  for (const auto& [name, codec] : codecs) {
    compare(communicator, device,
            {name, {.codec = codec}, {.communication_hook = by_host(codec)}, 0});
  }
}

stretto::View view_of(torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          stretto::DType::f32};
}

void expect(const char* what, const torch::Tensor& result, double value) {
  if (torch::all(result.cpu() == value).item<bool>()) return;
  throw std::runtime_error(std::string(what) + " is not " + std::to_string(value));
}

// By NCCL, in the communicator and in a part of it.
void try_collectives(stretto::Communicator& communicator, torch::Device device, const char* name) {
  const int ranks = communicator.size(), rank = communicator.rank().value();
  const auto filled = [&](std::int64_t count, double value) {
    return torch::full({count}, value, torch::TensorOptions().device(device));
  };
  constexpr std::int64_t kCount = 1024;
  torch::Tensor own = filled(kCount, rank + 1), part = filled(kCount, 0);
  torch::Tensor all = filled(kCount * ranks, 0), swapped = filled(kCount * ranks, 0);
  communicator.all_gather(view_of(own), view_of(all)).wait();
  expect("all_gather", all.slice(0, 0, kCount), 1);
  expect("all_gather", all.slice(0, kCount * (ranks - 1)), ranks);
  communicator.all_to_all(view_of(all), view_of(swapped)).wait();
  expect("all_to_all", swapped, rank + 1);
  communicator.reduce_scatter(view_of(all), view_of(part)).wait();
  expect("reduce_scatter", part, ranks * (rank + 1));
  communicator.broadcast(view_of(part)).wait();
  expect("broadcast", part, ranks);
  communicator.all_reduce(view_of(own)).wait();
  expect("all_reduce", own, ranks * (ranks + 1) / 2.0);
  communicator.all_reduce(view_of(own), {.op = stretto::ReduceOp::max}).wait();
  expect("all_reduce, max", own, ranks * (ranks + 1) / 2.0);
  std::printf("{\"check\": \"%s\", \"rank\": %d, \"ranks\": %d}\n", name, rank, ranks);
}

void run(const std::string& name) {
  // The linker leaves out what no function is called of.
  if (name == "cuda") (void)::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  const auto communicator = stretto::join();
  const auto number = communicator->device().value_or(0);
  const torch::Device device(name + ":" + std::to_string(number));
  if (communicator->device()) {
    try_collectives(*communicator, device, "collectives by NCCL");
    const auto part = communicator->split({.color = 0});
    try_collectives(*part, device, "collectives by NCCL in a part");
    part->abort("a check of abort()");
  }
  compare_all(*communicator, device);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: gpu_rank_program DEVICE\n", stderr), 2;
  return stretto::testing::run_or_explain([&] { run(argv[1]); });
}

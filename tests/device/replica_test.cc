// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// DistributedDataParallel with parameters on a device, which here is a double's (fake_device): the
// host cannot touch its memory, and its streams are late. No GPU is in these tests.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include <torch/torch.h>

#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Each rank has one of its own, since autograd has a thread for each device.
torch::Device device_of(const Communicator& communicator) {
  static const bool is_loaded = [] {
    ::setenv("STRETTO_CUDA_DRIVER", STRETTO_BIN_DIR "/libfake_nccl.so", 1);  // NOLINT
    void* const library = ::dlopen(STRETTO_BIN_DIR "/libfake_device.so", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    const auto set_delay =
        reinterpret_cast<void (*)(int)>(::dlsym(library, "fake_device_set_delay"));
    set_delay(2000);
    return true;
  }();
  EXPECT_TRUE(is_loaded);
  return {torch::kPrivateUse1, static_cast<c10::DeviceIndex>(communicator.rank().value())};
}

torch::Tensor random(std::uint64_t seed, torch::IntArrayRef shape, torch::Device device) {
  return with_seed(seed, [&] { return torch::randn(shape); }).to(device);
}

// Two layers, of which the second may be left out, and a factor that is a buffer.
struct PlacedImpl : torch::nn::Module {
  PlacedImpl(torch::Device device, std::uint64_t seed)
      : first(register_parameter("first", random(seed, {4, kInputs}, device))),
        second(register_parameter("second", random(seed + 1, {4, 4}, device))),
        factor(register_buffer("factor", random(seed + 2, {4}, device))) {}
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    const torch::Tensor hidden = torch::tanh(torch::mm(x, first.t())) * factor;
    return (both ? torch::mm(hidden, second) : hidden).pow(2).mean();
  }
  torch::Tensor first, second, factor;
};
TORCH_MODULE(Placed);

torch::Tensor share_of(int step, int rank, torch::Device device) {
  return part(global_batch(step), rank).data.to(device);
}

void expect_same_parameters(const Placed& model, const Placed& reference) {
  expect_close(model->first.cpu(), reference->first, "first");
  expect_close(model->second.cpu(), reference->second, "second");
  expect_close(model->factor.cpu(), reference->factor, "factor");
}

TEST(DeviceDouble, ReplicasStepLikeOneProcess) {
  for (const bool halved : {false, true}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const torch::Device device = device_of(communicator);
      Placed reference(torch::kCPU, 1);
      Placed model(device, static_cast<std::uint64_t>(rank) * 10 + 1);  // Rank 0's become all's.
      DistributedDataParallelOptions options{.bucket_bytes = {64}};
      if (halved) options.communication_hook = std::make_shared<Bf16Reduction>();
      DistributedDataParallel ddp(model, communicator, options);
      expect_same_parameters(model, reference);
      torch::optim::SGD alone(reference->parameters(), 0.1);
      torch::optim::SGD together(model->parameters(), 0.1);
      for (int step = 0; step < 4; ++step) {
        alone.zero_grad();
        together.zero_grad();
        reference->forward(global_batch(step).data, true).backward();
        ddp.forward(share_of(step, rank, device), true).backward();
        EXPECT_EQ(model->first.grad().device(), device);
        alone.step();
        together.step();
        ddp.verify_replicas();
      }
      if (!halved) expect_same_parameters(model, reference);
    });
  }
}

// Gradients of two passes are added before they are reduced; those of a third to the reduced ones.
TEST(DeviceDouble, GradientsAccumulate) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed reference(torch::kCPU, 1);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 3; ++step) {
      reference->forward(global_batch(step).data, true).backward();
      const auto pass = [&] { ddp.forward(share_of(step, rank, device), true).backward(); };
      if (step == 0) {
        const auto guard = ddp.no_sync();
        pass();
      } else {
        pass();
      }
    }
    expect_close(model->first.grad().cpu(), reference->first.grad(), "first");
    expect_close(model->second.grad().cpu(), reference->second.grad(), "second");
  });
}

TEST(DeviceDouble, WhatOneRankDoesNotUseHasTheMeanAndWhatNoneUsesHasNone) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    ddp.forward(share_of(0, rank, device), false).backward();
    EXPECT_FALSE(model->second.grad().defined());
    Placed reference(torch::kCPU, 1);
    reference->forward(share_of(1, 0, torch::kCPU), true).backward();
    ddp.zero_grad();
    ddp.forward(share_of(1, rank, device), rank == 0).backward();
    expect_close(model->second.grad().cpu(), reference->second.grad() / 2, "second");
  });
}

TEST(DeviceDouble, BuffersAreThoseOfRankZero) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    model->factor.fill_(rank + 3);
    ddp.forward(share_of(0, rank, device), true);
    expect_close(model->factor.cpu(), torch::full({4}, 3.0), "factor");
  });
}

struct ElsewhereImpl : torch::nn::Module {
  ElsewhereImpl(torch::Device one, torch::Device other)
      : here(register_parameter("here", torch::zeros({3}, one))),
        there(register_parameter("there", torch::zeros({3}, other))) {}
  torch::Tensor forward(const torch::Tensor& x) { return (x * here).sum(); }
  torch::Tensor here, there;
};
TORCH_MODULE(Elsewhere);

TEST(DeviceDouble, WhatDoesNotWorkOnADeviceIsRefusedByName) {
  run_ranks(1, [](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    const auto refused = [&](Elsewhere model, const DistributedDataParallelOptions& options = {}) {
      return message_of<InvalidArgument>(
          [&] { DistributedDataParallel ddp(model, communicator, options); });
    };
    expect_contains(refused(Elsewhere(device, torch::kMeta)), "'there' is on meta, which has no");
    expect_contains(refused(Elsewhere(device, torch::Device(torch::kPrivateUse1, 2))),
                    "'there' is on fake_device:2 and 'here' is on fake_device:0; all param");
    expect_contains(refused(Elsewhere(device, torch::kCPU)),
                    "'there' is on cpu and 'here' is on fake_device:0; all parameters");
    const std::string on_device = "' is on fake_device:0, and ";
    expect_contains(refused(Elsewhere(device, device), {.sparse_parameters = {"there"}}),
                    "'there" + on_device + "reduction of sparse gradients works on the CPU only");
    DistributedDataParallelOptions low;
    low.mixed_precision.parameter_dtype = DType::bf16;
    expect_contains(refused(Elsewhere(device, device), low),
                    "'here" + on_device + "mixed_precision.parameter_dtype works on the CPU only");
    Elsewhere model(device, device);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const auto text = [&](const std::function<void()>& call) {
      return message_of<InvalidArgument>(call);
    };
    expect_contains(text([&] { ddp.step_in_backward(optimizer); }),
                    "'here" + on_device + "step_in_backward() works on the CPU only");
    expect_contains(text([&] { ddp.save_state("nowhere", optimizer); }), "'here" + on_device);
    expect_contains(text([&] { ddp.load_state("nowhere", optimizer); }), "'here" + on_device);
    model->there.mutable_grad() = torch::zeros({3});
    expect_contains(text([&] { ddp.forward(torch::ones({3}, device)).backward(); }),
                    "the gradient of 'there' is on cpu, and the parameters are on fake_device:0");
  });
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// DistributedDataParallel with parameters on a device, which here is a double's (fake_device): the
// host cannot touch its memory, and its streams are late. No GPU is in these tests.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/device/placed_model.h"
#include "tests/support/double_ranks.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

// By what gradients are reduced: stretto's schedules, in buckets of the host, or the double of
// NCCL, in buckets of the device.
enum class By { schedules, nccl };
class DeviceDouble : public ::testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    Double::get().reset();
    load_fake_device();
  }
  void TearDown() override {
    EXPECT_EQ(Double::get().control().launches > 0, GetParam() == By::nccl);
    EXPECT_EQ(Double::get().control().misuse, "");
  }
  static void on_ranks(const std::function<void(Communicator&)>& body) {
    if (GetParam() == By::schedules) return run_ranks(kRanks, body);
    DoubleRanks ranks({.size = kRanks});
    ranks.on_all(body);
  }
};
INSTANTIATE_TEST_SUITE_P(By, DeviceDouble, ::testing::Values(By::schedules, By::nccl),
                         [](const auto& by) {
                           return by.param == By::nccl ? "nccl" : "schedules";
                         });

TEST_P(DeviceDouble, ReplicasStepLikeOneProcess) {
  for (const bool halved : {false, true}) {
    on_ranks([&](Communicator& communicator) {
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
TEST_P(DeviceDouble, GradientsAccumulate) {
  on_ranks([](Communicator& communicator) {
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

TEST_P(DeviceDouble, WhatOneRankDoesNotUseHasTheMeanAndWhatNoneUsesHasNone) {
  on_ranks([](Communicator& communicator) {
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

// Rank r has r + 1 batches; where it has none left, its buckets are zeros.
TEST_P(DeviceDouble, RanksWithFewerBatchesFollowTheOthers) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed reference(torch::kCPU, 1);
    torch::optim::SGD alone(reference->parameters(), 0.1);
    for (int step = 0; step < kRanks; ++step) {
      alone.zero_grad();
      for (int r = step; r < kRanks; ++r) {
        (reference->forward(share_of(step, r, torch::kCPU), true) / kRanks).backward();
      }
      alone.step();
    }
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    torch::optim::SGD together(model->parameters(), 0.1);
    ddp.join([&] {
      for (int step = 0; step <= rank; ++step) {
        together.zero_grad();
        ddp.forward(share_of(step, rank, device), true).backward();
        together.step();
      }
    });
    expect_same_parameters(model, reference);
  });
}

TEST_P(DeviceDouble, GradientsOfFrozenParametersStay) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](int number) {
      ddp.forward(share_of(number, rank, device), true).backward();
    };
    step(0);
    const torch::Tensor before = model->second.grad().cpu();
    model->second.set_requires_grad(false);
    step(1);
    step(2);
    expect_close(model->second.grad().cpu(), before, "second");
    Placed reference(torch::kCPU, 1);
    for (int number = 0; number < 3; ++number) {
      reference->forward(global_batch(number).data, true).backward();
    }
    expect_close(model->first.grad().cpu(), reference->first.grad(), "first");
  });
}

// Programs that compute on streams of their own; buckets are formed anew in between.
TEST_P(DeviceDouble, StreamsOfTheProgramAreWaitedForAndWait) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed reference(torch::kCPU, 1);
    Placed model(device, 1);
    (void)model->second.cpu();  // Made on the default stream.
    use_new_stream(device);
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}});
    for (int step = 0; step < 6; ++step) {
      reference->forward(global_batch(step).data, true).backward();
      ddp.forward(share_of(step, rank, device), true).backward();
      expect_close(model->first.grad().cpu(), reference->first.grad(), "first");
      expect_close(model->second.grad().cpu(), reference->second.grad(), "second");
    }
    use_default_stream(device);
  });
}

TEST(DeviceReplica, BuffersAreThoseOfRankZero) {
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

TEST(DeviceReplica, WhatDoesNotWorkOnADeviceIsRefusedByName) {
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

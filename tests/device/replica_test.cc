// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// DistributedDataParallel with parameters on a device, which is a double (fake_device): the host
// cannot touch its memory, and its streams are late. No test here uses a GPU.

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/base/stream_guard.h"
#include "stretto/torch/parameter_averaging.h"
#include "stretto/torch_device/streams.h"
#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/support/captured_graph.h"
#include "tests/support/double_ranks.h"
#include "tests/support/files.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

// Gradients are reduced in buckets on the host or on the device.
class DeviceDouble : public OnDevices {
 protected:
  void TearDown() override {
    const fake_nccl::Control control = Double::get().control();
    EXPECT_EQ(control.launches > 0, GetParam() == By::nccl);
    EXPECT_EQ(control.kernels > 0, GetParam() == By::kernels);
    OnDevices::TearDown();
  }
  static void on_ranks(const std::function<void(Communicator&)>& body) {
    OnDevices::on_ranks(kRanks, body);
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceDouble, all_ways(), name_of);

TEST_P(DeviceDouble, ReplicasStepLikeOneProcess) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed reference(torch::kCPU, 1);
    Placed model(device, static_cast<std::uint64_t>(rank) * 10 + 1);  // All get rank 0's.
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}});
    expect_same_parameters(model, reference);
    torch::optim::SGD alone(reference->parameters(), 0.1);
    torch::optim::SGD together(model->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      alone.zero_grad();
      together.zero_grad();
      reference->forward(global_batch(step).data, true).backward();
      ddp.forward(share_of(step, rank, device), true).backward();
      EXPECT_EQ(model->first.grad().device(), device);
      expect_close(model->first.grad().cpu(), reference->first.grad(), "first");
      alone.step();
      together.step();
      ddp.verify_replicas();
    }
    expect_same_parameters(model, reference);
  });
}

// The gradients of two passes are added before they are reduced, and those of a third pass are
// added to the reduced ones.
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

// Rank r has r + 1 batches. When a rank has none left, its buckets are zeros.
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
    // The stream that a program names for its own operations is ignored while ranks follow others.
    const StreamGuard other(new_stream(device).native_handle());
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

// Programs compute on streams of their own, and buckets are formed anew in between.
TEST_P(DeviceDouble, StreamsOfTheProgramAreWaitedForAndWait) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed reference(torch::kCPU, 1);
    Placed model(device, 1);
    (void)model->second.cpu();  // It was made on the default stream.
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

// Two branches, each of which is computed on its own stream.
struct BranchedImpl : torch::nn::Module {
  explicit BranchedImpl(torch::Device device)
      : quick(register_parameter("quick", random(1, {4, kInputs}, device))),
        late(register_parameter("late", random(2, {4, kInputs}, device))) {}
  static torch::Tensor branch(const torch::Tensor& x, const torch::Tensor& weight) {
    if (!x.is_cpu()) {
      synchronize(x.device());
      use_new_stream(x.device());
    }
    const torch::Tensor loss = torch::tanh(torch::mm(x, weight.t())).pow(2).mean();
    if (!x.is_cpu()) synchronize(x.device());
    return loss;
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor first = branch(x, quick);
    return first + branch(x, late);
  }
  torch::Tensor quick, late;
};
TORCH_MODULE(Branched);

// One branch writes its gradient long after that of the other has arrived in the bucket.
TEST_P(DeviceDouble, HalvedGradientsAreThoseOfAllStreams) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Branched reference(torch::kCPU), model(device);
    DistributedDataParallel ddp(model, communicator,
                                {.communication_hook = std::make_shared<Bf16Reduction>()});
    torch::Tensor spare = random(3, {4, kInputs}, device);
    model->late.register_hook([&](const torch::Tensor& gradient) {
      for (int i = 0; i < 60; ++i) spare.copy_(gradient);
    });
    for (int step = 0; step < 2; ++step) {
      reference->zero_grad();
      ddp.zero_grad();
      reference->forward(global_batch(step).data).backward();
      ddp.forward(share_of(step, rank, device)).backward();
      for (const auto& item : reference->named_parameters()) {
        const torch::Tensor found = ddp.named_parameters()[item.key()].grad().cpu();
        EXPECT_TRUE(torch::allclose(found, item.value().grad(), 0.02, 1e-3)) << item.key();
      }
    }
    use_default_stream(device);
  });
}

TEST_P(DeviceDouble, BuffersAreThoseOfRankZero) {
  on_ranks([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    model->factor.fill_(rank + 3);
    ddp.forward(share_of(0, rank, device), true).backward();
    expect_close(model->factor.cpu(), torch::full({4}, 3.0), "factor");
  });
}

class DeviceReplica : public OnDoubles {};

// The exception leaves backward() before autograd's thread for the device has cleaned up.
TEST_F(DeviceReplica, MayEndRightAfterAPassThatHasFailed) {
  for (int attempt = 0; attempt < 30; ++attempt) {
    run_ranks(1, [&](Communicator& communicator) {
      const torch::Device device = device_of(communicator);
      Placed model(device, 1);
      DistributedDataParallel ddp(model, communicator);
      std::optional<NoSync> guard;
      if (attempt % 2 == 1) guard.emplace(ddp.no_sync());
      const auto loss = ddp.forward(share_of(0, 0, device), true);
      model->hidden.register_hook(
          [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("own"); });
      EXPECT_EQ(message_of<std::runtime_error>([&] { loss.backward(); }), "own");
    });
  }
}

TEST_F(DeviceReplica, ParametersOnADeviceAreAveragedOnePartitionAfterTheOther) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto own = static_cast<float>(communicator.rank().value());
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(own);
    ParameterAveraging averaging(model->parameters(), communicator, {.partitions = 2});
    constexpr double kMean = (kRanks - 1) / 2.0;
    averaging.after_step();
    EXPECT_TRUE(torch::equal(model->first.cpu(), torch::full({4, kInputs}, kMean)));
    EXPECT_TRUE(torch::equal(model->second.cpu(), torch::full({4, 4}, own)));
    averaging.after_step();
    EXPECT_TRUE(torch::equal(model->second.cpu(), torch::full({4, 4}, kMean)));
  });
}

// Three layers on different devices, between which activations travel.
struct SpreadImpl : torch::nn::Module {
  SpreadImpl(torch::Device one, torch::Device two)
      : first(register_parameter("first", random(1, {4, kInputs}, one))),
        second(register_parameter("second", random(2, {4, 4}, torch::kCPU))),
        third(register_parameter("third", random(3, {4, 4}, two))),
        bias(register_parameter("bias", random(4, {4}, one))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::tanh(torch::mm(x.to(first.device()), first.t()) + bias).cpu();
    y = torch::tanh(torch::mm(y, second)).to(third.device());
    return torch::mm(y, third).pow(2).mean().cpu();
  }
  torch::Tensor first, second, third, bias;
};
TORCH_MODULE(Spread);

void expect_spread_model_steps_like_one_process(Communicator& communicator) {
  const int rank = communicator.rank().value();
  const torch::Device one = device_of(communicator);
  const torch::Device two(torch::kPrivateUse1, static_cast<c10::DeviceIndex>(rank + kRanks));
  Spread model(one, two);
  Spread reference(torch::kCPU, torch::kCPU);
  DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1 << 10}});
  for (int step = 0; step < 4; ++step) {
    {
      const auto guard = ddp.no_sync();
      ddp.forward(share_of(step + 10, rank, torch::kCPU)).backward();
    }
    ddp.forward(share_of(step, rank, torch::kCPU)).backward();
    reference->forward(global_batch(step + 10).data).backward();
    reference->forward(global_batch(step).data).backward();
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().grad().device(), item.value().device()) << item.key();
      const torch::Tensor expected = reference->named_parameters()[item.key()].grad();
      expect_close(item.value().grad().cpu(), expected, item.key());
    }
  }
  std::vector<std::vector<std::size_t>> together;
  for (const auto& bucket : ddp.bucket_plan()) together.push_back(bucket.gradients);
  std::ranges::for_each(together, [](auto& gradients) { std::ranges::sort(gradients); });
  std::ranges::sort(together);
  EXPECT_EQ(together, (std::vector<std::vector<std::size_t>>{{0, 3}, {1}, {2}}));
}

TEST_F(DeviceReplica, AModuleMayBeOnSeveralDevicesOfWhichEachHasBucketsOfItsOwn) {
  run_ranks(kRanks, expect_spread_model_steps_like_one_process);
  Double::get().reset();
  DoubleRanks({.size = kRanks}).on_all(expect_spread_model_steps_like_one_process);
}

// The threads of ranks begin with device 0, like those of programs.
TEST_F(DeviceReplica, TakesNoDeviceButThatOfItsParameters) {
  (void)devices_come_back_to();
  for (const auto& codec : {std::shared_ptr<const Codec>(), int8()}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const torch::Device device(torch::kPrivateUse1, static_cast<c10::DeviceIndex>(rank + 3));
      Wide model(device, 1);
      DistributedDataParallel ddp(model, communicator, {.codec = codec});
      ddp.forward(share_of(0, rank, device), true).backward();
      EXPECT_TRUE(model->first.grad().defined());
      let_wait(new_stream(device), current_stream(device));
      wait_for(current_stream(device));
    });
  }
  EXPECT_EQ(devices_come_back_to() & 1u, 0u);
}

TEST_F(DeviceReplica, RanksThatSpreadAModuleDifferentlyAreTold) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool spreads = communicator.rank() == Rank(1);
    Spread model(device_of(communicator), spreads ? torch::kCPU : device_of(communicator));
    expect_contains(message_of<Mismatch>([&] { DistributedDataParallel ddp(model, communicator); }),
                    "parameter 'third' has device number 0 on rank 0; 1 on rank 1");
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

TEST_F(DeviceReplica, WhatDoesNotWorkOnADeviceIsRefusedByName) {
  run_ranks(1, [](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    const auto refused = [&](Elsewhere model, const DistributedDataParallelOptions& options = {}) {
      return message_of<InvalidArgument>(
          [&] { DistributedDataParallel ddp(model, communicator, options); });
    };
    expect_contains(refused(Elsewhere(device, torch::kMeta)), "'there' is on meta, which has no");
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
    Elsewhere spread(device, torch::kCPU);
    DistributedDataParallel on_two(spread, communicator);
    const std::string on_one =
        "'here' is on fake_device:0 and 'there' is on cpu: save_state() and load_state() are for";
    expect_contains(text([&] { on_two.save_state("nowhere", optimizer); }), on_one);
    expect_contains(text([&] { on_two.load_state("nowhere", optimizer); }), on_one);
    const TemporaryFolder folder;
    Elsewhere here(torch::kCPU, torch::kCPU);
    DistributedDataParallel on_cpu(here, communicator);
    on_cpu.save_state(folder / "state", optimizer);
    expect_contains(text([&] { ddp.load_state(folder / "state", optimizer); }),
                    "written by a model that was on the CPU, and this one is on fake_device:0");
    use_new_stream(device);
    auto* const stream = static_cast<cuda::StreamHandle>(current_stream(device).native_handle());
    const CapturedGraph graph(
        Double::file(), cuda::Driver::open(Double::file(), device.index()).or_throw(), stream, [&] {
          expect_contains(text([&] { (void)ddp.forward(torch::Tensor()); }),
                          "the current stream of fake_device:0 is captured by a graph");
        });
    EXPECT_TRUE(graph.status().ok());
    use_default_stream(device);
    model->there.mutable_grad() = torch::zeros({3});
    expect_contains(text([&] { ddp.forward(torch::ones({3}, device)).backward(); }),
                    "the gradient of 'there' is on cpu, and the parameter is on fake_device:0");
  });
}

}  // namespace
}  // namespace stretto

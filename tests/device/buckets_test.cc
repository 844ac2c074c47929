// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Buckets of DistributedDataParallel in device memory that the communicator has made, where NCCL or
// stretto's kernels reduce them: what the host waits for, and what it is told when something goes
// wrong. The device and its libraries are doubles.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <utility>

#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/support/double_ranks.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

void stall(bool stalls) {
  Double::get().change([=](auto& control) { control.stalls = stalls; });
}

class DeviceBucketsDouble : public OnDoubles {};

// Runs with NCCL, or with stretto's kernels on memory that the ranks have mapped.
class DeviceBucketsBy : public OnDevices {
 protected:
  static bool is_nccl() { return GetParam() == By::nccl; }
  static int reductions() {
    const fake_nccl::Control control = Double::get().control();
    return is_nccl() ? control.launches : control.kernels;
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceBucketsBy, ::testing::Values(By::nccl, By::kernels), name_of);

TEST_P(DeviceBucketsBy, GradientsArePartsOfThem) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] {
      ddp.forward(share_of(0, communicator.rank().value(), device), true).backward();
    };
    step();
    const torch::Tensor first = model->first.grad();
    EXPECT_EQ(first.device(), device);
    EXPECT_TRUE(communicator.is_device_memory(first.data_ptr()));
    const fake_nccl::Control control = Double::get().control();
    EXPECT_GT(is_nccl() ? control.registrations : control.mapped_places, 0);
    const auto* const second = static_cast<const std::byte*>(model->second.grad().data_ptr());
    EXPECT_EQ(std::abs(static_cast<const std::byte*>(first.data_ptr()) - second),
              second < first.data_ptr() ? 64 : 128);  // Whole cache lines of gradients.
    ddp.zero_grad(/*set_to_none=*/false);
    step();
    EXPECT_TRUE(model->first.grad().is_same(first));
    ddp.zero_grad();
    step();
    EXPECT_EQ(model->first.grad().data_ptr(), first.data_ptr());
  });
}

// Trains replicas on devices for three steps, and one model on the host with the data of all ranks.
// `backward` takes the output of the replica's forward pass and both models.
template <class Backward>
void expect_like_one_process(Communicator& communicator,
                             const DistributedDataParallelOptions& options,
                             const Backward& backward) {
  const torch::Device device = device_of(communicator);
  Placed reference(torch::kCPU, 1);
  Placed model(device, 1);
  DistributedDataParallel ddp(model, communicator, options);
  torch::optim::SGD alone(reference->parameters(), 0.1);
  torch::optim::SGD together(model->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    alone.zero_grad();
    reference->forward(global_batch(step).data, true).backward();
    together.zero_grad();
    backward(ddp.forward(share_of(step, communicator.rank().value(), device), true), model,
             reference);
    alone.step();
    together.step();
  }
  expect_same_parameters(model, reference);
}

// No kernel of NCCL has ended when all ranks have returned from backward. Later work on the device
// waits for the kernels.
TEST_F(DeviceBucketsDouble, BackwardDoesNotWaitForTheDevice) {
  DoubleRanks ranks({.size = kRanks});
  ranks.on_all([](Communicator& communicator) {
    const bool is_first = communicator.rank() == Rank(0);
    const auto backward = [&](const torch::Tensor& loss, Placed& model, Placed& reference) {
      communicator.barrier().wait();
      if (is_first) stall(true);
      communicator.barrier().wait();
      loss.backward();
      const torch::Tensor kept = model->first.grad().clone();  // The device copies it once it can.
      communicator.barrier().wait();
      if (is_first) stall(false);
      expect_close(kept.cpu(), reference->first.grad(), "first");
    };
    expect_like_one_process(communicator, {.bucket_bytes = {64}, .rebuild_buckets = false},
                            backward);
  });
}

TEST_F(DeviceBucketsDouble, AreOnTheHostWhereRanksCannotMapMemoryOfDevices) {
  DoubleRanks ranks({.size = kRanks, .maps_devices = true, .shares_memory = false});
  ranks.on_all([](Communicator& communicator) {
    const auto backward = [](const torch::Tensor& loss, Placed&, Placed&) { loss.backward(); };
    expect_like_one_process(communicator, {}, backward);
  });
  EXPECT_EQ(Double::get().control().kernels, 0);
}

// Without an error, the optimizer would step with the content of the buckets; so the next step
// throws. Or, if not `steps_on`, there is no next step, and freeing the buckets waits for the
// device. stretto's kernels have ended by then.
void lose_a_rank_behind_backward(DoubleRanks ranks, bool steps_on) {
  std::atomic<int> returned{0};
  ranks.on_all([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    const auto loss = ddp.forward(share_of(0, rank, device), true);
    communicator.barrier().wait();
    if (rank == 0) stall(true);
    communicator.barrier().wait();
    loss.backward();
    if (++returned == kRanks) ranks.kill(1);
    if (!steps_on) return;
    synchronize(device);
    const auto step = [&] { ddp.forward(share_of(1, rank, device), true).backward(); };
    if (rank == 0) expect_contains(message_of<PeerLost>(step), "rank 1");
  });
}

TEST_P(DeviceBucketsBy, DeathBehindBackwardEndsWhatStreamsWaitForAndTheNextStepSaysIt) {
  lose_a_rank_behind_backward(make(), true);
  stall(false);
  lose_a_rank_behind_backward(make(), false);
  EXPECT_EQ(Double::get().control().aborts, is_nccl() ? 2 * kRanks : 0);
}

class ReadingReduction : public PlainReduction {
 public:
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    EXPECT_TRUE(std::isfinite(*reinterpret_cast<const float*>(bucket.view.data)));
    return PlainReduction::start(communicator, bucket);
  }
};

// The device makes and reads these gradients of 16 bits.
TEST_P(DeviceBucketsBy, HalvesAreReducedOnTheDevice) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    const std::vector<DistributedDataParallelOptions> all = {
        {.communication_hook = std::make_shared<F16Reduction>()},
        {.communication_hook = std::make_shared<Bf16Reduction>()},
        {.mixed_precision = {.reduce_dtype = DType::bf16}}};
    for (const DistributedDataParallelOptions& options : all) {
      Placed reference(torch::kCPU, 1);
      Placed model(device, 1);
      (void)model->second.cpu();  // It was made on the default stream.
      use_new_stream(device);
      DistributedDataParallel ddp(model, communicator, options);
      for (int step = 0; step < 3; ++step) {
        reference->zero_grad();
        reference->forward(global_batch(step).data, true).backward();
        ddp.zero_grad();
        ddp.forward(share_of(step, communicator.rank().value(), device), true).backward();
        const torch::Tensor result = model->first.grad().cpu();
        EXPECT_TRUE(torch::allclose(result, reference->first.grad(), 2e-2, 2e-3));
        EXPECT_FALSE(torch::equal(result, reference->first.grad()));
      }
      use_default_stream(device);
    }
  });
  EXPECT_GT(reductions(), 0);
}

struct OfAllTypesImpl : torch::nn::Module {
  explicit OfAllTypesImpl(torch::Device device) {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                            torch::kComplexFloat, torch::kComplexDouble}) {
      register_parameter(c10::toString(type), torch::ones({3}, type).to(device));
    }
  }
  torch::Tensor forward(double factor) {
    torch::Tensor sum;
    for (const torch::Tensor& each : parameters()) {
      const torch::Tensor own = (each * factor).abs().sum().to(torch::kDouble);
      sum = sum.defined() ? sum + own : own;
    }
    return sum;
  }
};
TORCH_MODULE(OfAllTypes);

// PyTorch's cache fills the device.
TEST_F(DeviceBucketsDouble, WhatPyTorchKeepsForLaterMakesRoomForThem) {
  DoubleRanks ranks({.size = kRanks, .maps_devices = true});
  Double::get().change(
      [](auto& control) { control.cached_bytes = std::exchange(control.exportable_bytes, 0); });
  ranks.on_all([](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    Placed model(device, 1);
    DistributedDataParallel ddp(model, communicator);
    ddp.forward(share_of(0, communicator.rank().value(), device), true).backward();
    EXPECT_TRUE(communicator.is_device_memory(model->first.grad().data_ptr()));
  });
}

TEST_P(DeviceBucketsBy, HoldGradientsOfAllTypes) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& communicator) {
    OfAllTypes model(device_of(communicator));
    DistributedDataParallel ddp(model, communicator);
    ddp.forward(communicator.rank().value() + 1.0).backward();
    for (const auto& item : model->named_parameters()) {
      const torch::Tensor gradient = item.value().grad();
      EXPECT_TRUE(communicator.is_device_memory(gradient.data_ptr())) << item.key();
      EXPECT_TRUE(torch::all(gradient.cpu() == (kRanks + 1) / 2.0).item<bool>()) << item.key();
    }
  });
}

// A communication_hook that a program passes may read bytes on the host, and so does the division
// of means.
TEST_P(DeviceBucketsBy, WhatTheHostReadsIsStagedThere) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    const std::vector<DistributedDataParallelOptions> readers = {
        {.communication_hook = std::make_shared<CompressedReduction>()},
        {.communication_hook = std::make_shared<ReadingReduction>()},
        {.mean_division = MeanDivision::before_sum}};
    for (const DistributedDataParallelOptions& options : readers) {
      Placed model(device, 1);
      DistributedDataParallel ddp(model, communicator, options);
      ddp.forward(share_of(0, communicator.rank().value(), device), true).backward();
    }
  });
  EXPECT_EQ(reductions(), 0);
}

// Rank 0's module is on a device, and the others' are on the CPU.
TEST_P(DeviceBucketsBy, RanksWithBucketsElsewhereAreTold) {
  DoubleRanks ranks = make();
  ranks.on_all([](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    Placed model(communicator.rank() == Rank(0) ? device : torch::Device(torch::kCPU), 1);
    const auto build = [&] { DistributedDataParallel ddp(model, communicator); };
    expect_contains(message_of<Mismatch>(build), "buckets");
  });
}

}  // namespace
}  // namespace stretto

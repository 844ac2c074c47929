// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Buckets of a device that go to the host in slices, because the communicator reaches no device.
// The device is a double (fake_device), whose copies are late.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/support/double_ranks.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

class StagedBuckets : public OnDoubles {};

// The gradients are ramps, times the input of forward(), and are made in the order of registration.
// So buckets are formed anew, and the first becomes much longer. The double has little memory.
struct LongImpl : torch::nn::Module {
  explicit LongImpl(torch::Device device) {
    for (const std::int64_t count : {(1 << 20) + 5, 5, 1 << 10}) {
      ramps.push_back(torch::arange(count, torch::kFloat).remainder(1024).to(device));
      all.push_back(
          register_parameter("p" + std::to_string(all.size()), torch::zeros({count}).to(device)));
    }
  }
  torch::Tensor forward(double factor) {
    torch::Tensor sum = (all[2] * ramps[2]).sum() * (factor + 2);
    for (const std::size_t i : {1, 0}) {
      sum = sum + (all[i] * ramps[i]).sum() * (factor + static_cast<double>(i));
    }
    return sum;
  }
  std::vector<torch::Tensor> all, ramps;
};
TORCH_MODULE(Long);

TEST_F(StagedBuckets, OfSeveralSlicesAndFormedAnewHoldTheSums) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Long model(device_of(communicator));
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(step + 2 * rank).backward();
      for (std::size_t i = 0; step > 0 && i < model->all.size(); ++i) {
        const torch::Tensor expected = model->ramps[i].cpu() * (static_cast<double>(i) + step + 1);
        EXPECT_TRUE(torch::equal(model->all[i].grad().cpu(), expected)) << i << " in " << step;
      }
    }
  });
}

// At that time, slices are on their way to the host, and others are being reduced.
TEST_F(StagedBuckets, AFailureInTheMiddleOfAPassEndsItOnAllRanks) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    run_ranks(kRanks, [](Communicator& communicator, int rank) {
      const torch::Device device = device_of(communicator);
      Placed model(device, 1);
      DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}});
      const torch::Tensor loss = ddp.forward(share_of(0, rank, device), true);
      if (rank == 1) {
        model->hidden.register_hook(
            [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("own"); });
        EXPECT_EQ(message_of<std::runtime_error>([&] { loss.backward(); }), "own");
      } else {
        expect_contains(message_of<Aborted>([&] { loss.backward(); }),
                        "rank 1 aborted: an exception ended its step");
      }
    });
  }
}

}  // namespace
}  // namespace stretto

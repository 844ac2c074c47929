// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Parts of training besides gradients, with parameters on a double's device: normalisation over all
// ranks, a sharded optimizer, and saved states.

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/base/stream_guard.h"
#include "stretto/torch/optimizer_state.h"
#include "stretto/torch/sharded_optimizer.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch_device/streams.h"
#include "tests/device/greater.h"
#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/files.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

// gpu_rank_program uses it to compare what a GPU has computed.
TEST(Greater, IsNoNumberWhereOneIsNone) {
  EXPECT_EQ(greater(1, 2), 2);
  EXPECT_EQ(greater(2, 1), 2);
  EXPECT_TRUE(std::isnan(greater(1, std::nan(""))));
  EXPECT_TRUE(std::isnan(greater(std::nan(""), 1)));
}

class DeviceTraining : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(, DeviceTraining, all_ways(), name_of);

// Of a batch of 4 images, rank 0 has 1 and rank 1 has 3.
TEST_P(DeviceTraining, SyncBatchNormIsBatchNormOfTheWholeBatch) {
  on_ranks(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == Rank(0);
    const torch::Device device = device_of(communicator);
    use_new_stream(device);
    // The double cannot take parameters from the host, as a GPU can (gpu_rank_program).
    const auto plain = torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false);
    torch::nn::BatchNorm2d reference(plain);
    SyncBatchNorm model(communicator, 3, plain);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const torch::Tensor whole = random(80 + step, {4, 3, 5, 2}, torch::kCPU) * 3 + 7;
      const auto own = [&](const torch::Tensor& of_all) {
        return first ? of_all.slice(0, 0, 1) : of_all.slice(0, 1);
      };
      torch::Tensor all = whole.clone().requires_grad_();
      torch::Tensor part = own(whole).clone().to(device).requires_grad_();
      const torch::Tensor expected = reference->forward(all);
      const torch::Tensor output = model->forward(part);
      expect_close(output.cpu(), own(expected), "output");
      expected.pow(3).sum().backward();
      output.pow(3).sum().backward();
      EXPECT_TRUE(torch::allclose(part.grad().cpu(), own(all.grad()), 1e-3, 1e-4));
    }
    use_default_stream(device);
  });
}

TEST_P(DeviceTraining, GroupsOfSyncBatchNormMakeNothingOnTheDevice) {
  on_ranks(2, [](Communicator& communicator) {
    for (int layer = 0; layer < 3; ++layer) const SyncBatchNorm made(communicator, 3);
    const auto group = communicator.new_group({0, 1}, {.is_for_host_memory = true});
    const auto made_of_it = group->split({.color = 0});
    EXPECT_FALSE(group->device());
    EXPECT_FALSE(made_of_it->device());
    torch::Tensor sum = torch::ones({3});
    made_of_it->all_reduce(sum).wait();
    EXPECT_TRUE(torch::equal(sum, torch::full({3}, 2.0f)));
    // Each rank has only the connection of the job.
    EXPECT_EQ(Double::get().control().connections, GetParam() == By::nccl ? 2 : 0);
  });
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream file;
  torch::save(optimizer, file);
  return file.str();
}

TEST_P(DeviceTraining, AShardedOptimizerHasTheBitsOfTheOptimizerItself) {
  on_ranks(3, [](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    use_new_stream(device);
    // The stream that a program names for its own operations is ignored.
    const StreamGuard other(new_stream(device).native_handle());
    Placed sharded_model(device, 1), whole_model(device, 1);
    const torch::optim::AdamOptions settings(1e-2);
    torch::optim::Adam optimizer(sharded_model->parameters(), settings);
    torch::optim::Adam whole(whole_model->parameters(), settings);
    ShardedOptimizer sharded(optimizer, communicator);
    for (int step = 0; step < 4; ++step) {
      set_gradients(*sharded_model, step);
      sharded.step();
      set_gradients(*whole_model, step);
      whole.step();
      expect_same_bits(*sharded_model, *whole_model);
    }
    EXPECT_LE(optimizer.state().size(), 1u);
    sharded.gather_state();
    for (const auto& parameter : sharded_model->parameters()) {
      const auto& state = optimizer.state().at(parameter.unsafeGetTensorImpl());
      EXPECT_EQ(static_cast<torch::optim::AdamParamState&>(*state).exp_avg().device(), device);
    }
    EXPECT_EQ(saved(optimizer).size(), saved(whole).size());
    use_default_stream(device);
  });
}

// Only the bytes of a parameter travel, and other strides would give them another meaning.
TEST_P(DeviceTraining, RanksWhoseParametersHaveOtherStridesAreTold) {
  on_ranks(2, [](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    const bool first = communicator.rank() == Rank(0);
    const torch::Tensor parameter =
        first ? torch::zeros({4, 3}).to(device) : torch::zeros({3, 4}).to(device).t();
    torch::optim::SGD optimizer({parameter}, 0.1);
    expect_contains(
        message_of<Mismatch>([&] { ShardedOptimizer sharded(optimizer, communicator); }),
        "parameter '0' has strides [3, 1] on rank 0; [1, 4] on rank 1");
  });
}

// Rank r has r + 1 batches. Without data, a rank steps its parameters with another rank's
// gradients.
TEST_P(DeviceTraining, AShardedOptimizerStepsOnRanksWithoutData) {
  on_ranks(2, [](Communicator& communicator) {
    const torch::Device device = device_of(communicator);
    Placed sharded_model(device, 1), whole_model(device, 1);
    DistributedDataParallel ddp(sharded_model, communicator), twin(whole_model, communicator);
    torch::optim::Adam optimizer(sharded_model->parameters(), 1e-2);
    torch::optim::Adam whole(whole_model->parameters(), 1e-2);
    ShardedOptimizer sharded(optimizer, communicator);
    const auto train = [&](DistributedDataParallel<Placed>& model, const auto& step_optimizer,
                           const UnevenInputsOptions& options) {
      model.join(
          [&] {
            for (int step = 0; step <= communicator.rank().value(); ++step) {
              model.zero_grad();
              model.forward(share_of(step, communicator.rank().value(), device), true).backward();
              step_optimizer();
            }
          },
          options);
    };
    train(ddp, [&] { sharded.step(); }, {.joinables = {&sharded}});
    train(twin, [&] { whole.step(); }, {});
    expect_same_bits(*sharded_model, *whole_model);
  });
}

// The root has both parameters on its device, and the other rank has one of them on the host.
TEST_P(DeviceTraining, TheStateOfTheRootsOptimizerComesToThePlacesOfParameters) {
  on_ranks(2, [](Communicator& communicator) {
    const bool is_root = communicator.rank() == Rank(0);
    const torch::Device device = device_of(communicator);
    const std::vector<torch::Tensor> parameters{
        torch::zeros({3}).to(device), torch::zeros({3}).to(is_root ? device : torch::kCPU)};
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(1).momentum(0.5));
    for (const torch::Tensor& parameter : parameters) {
      parameter.mutable_grad() = torch::full({3}, is_root ? 1.F : 3.F).to(parameter.device());
    }
    optimizer.step();
    broadcast_optimizer(optimizer, communicator);
    for (const torch::Tensor& parameter : parameters) {
      const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
      const auto& of_sgd = static_cast<const torch::optim::SGDParamState&>(state);
      EXPECT_EQ(of_sgd.momentum_buffer().device(), parameter.device());
    }
    optimizer.step();
    const float expected = is_root ? -1 - (0.5F + 1) : -3 - (0.5F + 3);  // By the root's momentum.
    for (const torch::Tensor& parameter : parameters) {
      EXPECT_TRUE(torch::equal(parameter.cpu(), torch::full({3}, expected)));
    }
  });
}

// A codec compresses the gradients, and the state includes its residuals.
class DeviceState : public DeviceTraining {
 protected:
  // Runs steps `first` to `last` and returns the parameters. Loads the state first if `first` is
  // not 0, and saves it after step `saved`.
  std::vector<torch::Tensor> train(Communicator& communicator, int first, int last, int saved,
                                   const DistributedDataParallelOptions& options) {
    const torch::Device device = device_of(communicator);
    Wide model(device, first == 0 ? 1 : 9);
    DistributedDataParallel ddp(model, communicator, options);
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    const auto compute = [&](int step) {
      optimizer.zero_grad();
      ddp.forward(share_of(step, communicator.rank().value(), device), true).backward();
    };
    if (first > 0) {
      compute(11);  // This leaves other residuals.
      ddp.load_state(path_, optimizer);
    }
    for (int step = first; step <= last; ++step) {
      compute(step);
      optimizer.step();
      if (step == saved) ddp.save_state(path_, optimizer);
    }
    std::vector<torch::Tensor> parameters;
    for (const torch::Tensor& each : ddp.parameters()) {
      EXPECT_EQ(each.device(), device);
      parameters.push_back(each.detach().cpu());
    }
    return parameters;
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "state";
};
INSTANTIATE_TEST_SUITE_P(, DeviceState, all_ways(), name_of);

TEST_P(DeviceState, TrainingGoesOnBitByBit) {
  const DistributedDataParallelOptions all[] = {
      {},
      {.codec = top_k({.density = 0.05})},
      {.codec = power_sgd()},
      {.codec = int8({.stochastic = true}), .exchange = CompressedExchange::divide}};
  for (const DistributedDataParallelOptions& options : all) {
    on_ranks(2, [&](Communicator& communicator) {
      const auto expected = train(communicator, 0, 5, 2, options);
      communicator.barrier().wait();
      const auto resumed = train(communicator, 3, 5, -1, options);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::equal(resumed[i], expected[i]))
            << i << (options.codec != nullptr ? options.codec->name() : "");
      }
    });
  }
}

}  // namespace
}  // namespace stretto

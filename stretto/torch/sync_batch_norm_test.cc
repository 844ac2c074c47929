// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sync_batch_norm.h"

#include <gtest/gtest.h>

#include "stretto/torch/tensors.h"
#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Ranks have 1 and 3 images of a batch of 4.
TEST(SyncBatchNorm, IsBatchNormOfTheWholeBatch) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool first = communicator.rank() == Rank(0);
    torch::nn::BatchNorm2d reference(3);
    SyncBatchNorm model(communicator, 3);
    for (int step = 0; step < 3; ++step) {
      const auto seed = 80 + static_cast<std::uint64_t>(step);
      auto whole = with_seed(seed, [] { return torch::randn({4, 3, 5, 2}) * 3 + 7; });
      auto part = (first ? whole.slice(0, 0, 1) : whole.slice(0, 1)).clone();
      whole.set_requires_grad(true);
      part.set_requires_grad(true);
      const auto expected = reference->forward(whole);
      const auto output = model->forward(part);
      expect_close(output, first ? expected.slice(0, 0, 1) : expected.slice(0, 1), "output");
      model->zero_grad();
      reference->zero_grad();
      expected.pow(3).sum().backward();
      output.pow(3).sum().backward();
      const auto& gradient = whole.grad();
      EXPECT_TRUE(torch::allclose(
          part.grad(), first ? gradient.slice(0, 0, 1) : gradient.slice(0, 1), 1e-3, 1e-4));
      auto weight = model->weight.grad().clone();  // Each rank's part of the sum.
      all_reduce(communicator, weight).wait();
      EXPECT_TRUE(torch::allclose(weight, reference->weight.grad(), 1e-4, 1e-4));
    }
    expect_close(model->running_mean, reference->running_mean, "running mean");
    expect_close(model->running_var, reference->running_var, "running variance");
    model->eval();
    reference->eval();
    const auto other = torch::ones({2, 3, 1, 1});
    expect_close(model->forward(other), reference->forward(other), "evaluation");
  });
}

TEST(SyncBatchNorm, RefusesAnotherNumberOfChannels) {
  run_ranks(1, [](Communicator& communicator) {
    SyncBatchNorm model(communicator, 3);
    EXPECT_THROW(model->forward(torch::ones({2, 4})), InvalidArgument);
  });
}

}  // namespace
}  // namespace stretto

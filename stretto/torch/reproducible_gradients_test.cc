// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/reproducible_gradients.h"

#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

constexpr int kMicroBatches = 7;
constexpr int kTrainedSteps = 4;

torch::Tensor loss_of_micro_batch(Net& model, int step, int micro_batch) {
  return loss_of(*model, global_batch(kMicroBatches * step + micro_batch));
}

// Returns the parameters after some steps, and checks that they are the same on all ranks.
std::vector<torch::Tensor> trained_by(int ranks) {
  std::vector<torch::Tensor> result;
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& communicator) {
    Net model = net();
    torch::optim::Adam optimizer(model->parameters(), 1e-2);
    ReproducibleGradients gradients(model->parameters(), communicator);
    for (int step = 0; step < kTrainedSteps; ++step) {
      optimizer.zero_grad();
      for (int m = communicator.rank().value(); m < kMicroBatches; m += ranks) {
        loss_of_micro_batch(model, step, m).backward();
        gradients.add();
      }
      EXPECT_EQ(gradients.reduce(), kMicroBatches);
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; const torch::Tensor& each : model->parameters()) {
      if (result.size() <= i) result.push_back(each.detach().clone());
      EXPECT_TRUE(torch::equal(each, result[i++]));
    }
  });
  return result;
}

TEST(ReproducibleGradients, TrainTheSameBitsOnAnyNumberOfRanks) {
  const auto expected = trained_by(1);
  for (const int ranks : {2, 3, 4, 8}) {
    const auto found = trained_by(ranks);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << ranks << " ranks, parameter " << i;
    }
  }
}

TEST(ReproducibleGradients, AreMeans) {
  Net reference = net();
  for (int m = 0; m < kMicroBatches; ++m) {
    (loss_of_micro_batch(reference, 0, m) / kMicroBatches).backward();
  }
  run_ranks(2, [&](Communicator& communicator) {
    Net model = net();
    ReproducibleGradients gradients(model->parameters(), communicator);
    for (int m = communicator.rank().value(); m < kMicroBatches; m += 2) {
      loss_of_micro_batch(model, 0, m).backward();
      gradients.add();
    }
    gradients.reduce();
    expect_gradients_of(*reference, *model);
  });
}

TEST(ReproducibleGradients, OfWhatNobodyUsesThereIsNone) {
  run_ranks(2, [](Communicator& communicator) {
    const auto parameter = [] { return torch::zeros({2, 3}).requires_grad_(); };
    const std::vector<torch::Tensor> parameters = {parameter(), parameter(),
                                                   parameter().to(torch::kBFloat16).detach()};
    ReproducibleGradients gradients(parameters, communicator);
    if (communicator.rank() == Rank(1)) {
      parameters[1].mutable_grad() = torch::ones({2, 3});
      parameters[2].mutable_grad() = torch::full({2, 3}, 3, torch::kBFloat16);
    }
    gradients.add();
    EXPECT_FALSE(parameters[1].grad().defined());
    EXPECT_EQ(gradients.reduce(), 2);
    EXPECT_FALSE(parameters[0].grad().defined());
    EXPECT_TRUE(torch::equal(parameters[1].grad(), torch::full({2, 3}, 0.5)));
    EXPECT_TRUE(torch::equal(parameters[2].grad(), torch::full({2, 3}, 1.5, torch::kBFloat16)));
    EXPECT_EQ(gradients.reduce(), 0);
    EXPECT_FALSE(parameters[1].grad().defined());
  });
}

TEST(ReproducibleGradients, AreAllNaNWhereOneIsNotFinite) {
  run_ranks(2, [](Communicator& communicator) {
    const std::vector<torch::Tensor> parameters = {torch::zeros({2}), torch::zeros({3})};
    ReproducibleGradients gradients(parameters, communicator);
    for (const torch::Tensor& each : parameters) each.mutable_grad() = torch::ones_like(each);
    if (communicator.rank() == Rank(1)) {
      parameters[1].mutable_grad()[2] = std::numeric_limits<float>::infinity();
    }
    gradients.add();
    gradients.reduce();
    for (const torch::Tensor& each : parameters)
      EXPECT_TRUE(each.grad().isnan().all().item<bool>());
  });
}

// The first backward pass would add to them on each rank.
TEST(ReproducibleGradients, ThatNobodyHasClearedAreRefused) {
  run_ranks(2, [](Communicator& communicator) {
    const std::vector<torch::Tensor> parameters = {torch::zeros({2}), torch::zeros({3})};
    ReproducibleGradients gradients(parameters, communicator);
    const auto take_step = [&](const std::string& refusal) {
      for (const torch::Tensor& each : parameters) {
        torch::Tensor& gradient = each.mutable_grad();
        gradient = gradient.defined() ? gradient.add_(1) : torch::ones_like(each);
      }
      if (!refusal.empty()) {
        expect_contains(message_of<InvalidArgument>([&] { gradients.add(); }), refusal);
        EXPECT_TRUE(parameters[0].grad().defined()) << "has been taken";
        for (const torch::Tensor& each : parameters) each.mutable_grad() = torch::ones_like(each);
      }
      gradients.add();
      gradients.reduce();
      EXPECT_TRUE(torch::equal(parameters[0].grad(), torch::ones({2})));
    };
    take_step("");
    take_step("parameter 0 is that of the last reduce()");
    parameters[0].mutable_grad() = torch::Tensor();
    take_step("parameter 1 is that of the last reduce()");
  });
}

TEST(ReproducibleGradients, RefuseWhatTheyCannotAdd) {
  run_ranks(2, [](Communicator& communicator) {
    const auto refused = [&](std::vector<torch::Tensor> parameters) {
      return message_of<InvalidArgument>(
          [&] { ReproducibleGradients gradients(std::move(parameters), communicator); });
    };
    expect_contains(refused({torch::zeros({2}), torch::zeros({2}, torch::kDouble)}),
                    "parameter 1 is not a dense tensor of f32, f16 or bf16 on the CPU");
    const auto differ = [&](const torch::Tensor& on_rank_0, const torch::Tensor& on_rank_1) {
      const torch::Tensor& own = communicator.rank() == Rank(0) ? on_rank_0 : on_rank_1;
      return message_of<Mismatch>([&] { ReproducibleGradients gradients({own}, communicator); });
    };
    expect_contains(differ(torch::zeros({2}), torch::zeros({3})),
                    "parameter '0' has shape [2] on rank 0; [3] on rank 1");
    expect_contains(differ(torch::zeros({2}), torch::zeros({2}, torch::kDouble)),
                    "parameter '0' has dtype Float on rank 0; Double on rank 1");
    expect_contains(differ(torch::zeros({2}), torch::zeros({2}).to_sparse()),
                    "parameter '0' has strides [1] on rank 0; none on rank 1");
    expect_contains(differ(torch::zeros({2}), torch::Tensor()),
                    "parameter '0' has shape [2] on rank 0; none on rank 1");
    const torch::Tensor parameter = torch::zeros({2, 2});
    ReproducibleGradients gradients({parameter}, communicator);
    parameter.mutable_grad() = torch::ones({2, 2}).to_sparse();
    expect_contains(message_of<InvalidArgument>([&] { gradients.add(); }),
                    "the gradient of parameter 0 is sparse");
    expect_contains(refused({torch::Tensor()}), "parameter 0 is not a dense tensor");
  });
}

}  // namespace
}  // namespace stretto

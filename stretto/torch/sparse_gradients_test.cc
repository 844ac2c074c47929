// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sparse_gradients.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/torch_models.h"

// Sparse gradients if no rank has rows, and parameters that cannot have sparse gradients.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

struct BagImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words, bool uses_table) {
    const auto sum = [&] { return table(words, torch::zeros({1}, torch::kLong)); };
    return layer(uses_table ? sum() : torch::ones({1, 2})).sum();
  }
  torch::nn::EmbeddingBag table = register_module(
      "table",
      torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(5, 2).mode(torch::kSum).sparse(true)));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
};
TORCH_MODULE(Bag);

// Momentum moves a table whose gradient has no rows, but not one without a gradient.
TEST(SparseGradients, WithoutRowsAreDefinedWhereTheyAreInOneProcess) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Bag model = seeded<Bag>(1), reference = seeded<Bag>(1);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD optimizer(ddp.parameters(), options), alone(reference->parameters(), options);
    // All ranks use the table, then only rank 0, then only rank 1, then none.
    const auto uses_table = [](int step, int user) { return step == 0 || step == user + 1; };
    for (int step = 0; step < 4; ++step) {
      const auto words = step == 0 ? torch::tensor({1, 2}) : torch::empty({0}, torch::kLong);
      optimizer.zero_grad();
      ddp.forward(words, uses_table(step, rank)).backward();
      alone.zero_grad();
      for (int user = 0; user < kRanks; ++user) {
        (reference->forward(words, uses_table(step, user)) / kRanks).backward();
      }
      EXPECT_EQ(model->table->weight.grad().defined(), step < 3);
      EXPECT_EQ(reference->table->weight.grad().defined(), step < 3);
      optimizer.step();
      alone.step();
      expect_equal_parameters(*model, *reference);
      EXPECT_NO_THROW(ddp.verify_replicas());
    }
  });
}

TEST(SparseGradients, AfterJoinAreThoseOfTheLastRank) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Bag model;
    DistributedDataParallel ddp(model, communicator);
    ddp.join([&] {
      for (int batch = 0; batch < rank; ++batch) {
        ddp.forward(torch::tensor({3}), true).backward();
      }
    });
    ASSERT_TRUE(model->table->weight.grad().defined());
    EXPECT_EQ(model->table->weight.grad()._nnz(), 1);
  });
}

// A model whose table has two names, of which the first is listed.
struct TwoNamesImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    return torch::embedding(second, words, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                            /*sparse=*/true)
        .sum();
  }
  torch::Tensor first = register_parameter("first", torch::ones({5, 2}));
  torch::Tensor second = register_parameter("second", first);
};
TORCH_MODULE(TwoNames);

TEST(SparseGradients, ATableMayBeNamedByAnyOfItsNames) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    for (const char* const name : {"first", "second"}) {
      TwoNames model;
      DistributedDataParallel ddp(model, communicator, {.sparse_parameters = {name}});
      ddp.forward(torch::tensor({rank})).backward();
      ASSERT_TRUE(model->first.grad().is_sparse()) << name;
      EXPECT_EQ(model->first.grad()._nnz(), kRanks) << name;
    }
  });
}

struct ScaledImpl : torch::nn::Module {
  torch::Tensor scale = register_parameter("scale", torch::ones({}));
};
TORCH_MODULE(Scaled);

TEST(SparseGradients, NamesThatCannotHaveThemAreRefused) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto refused = [&](const std::string& name) {
      Scaled model;
      return message_of<InvalidArgument>(
          [&] { DistributedDataParallel ddp(model, communicator, {.sparse_parameters = {name}}); });
    };
    expect_contains(refused("scale"), "parameter 'scale' is a scalar, which has no rows");
    expect_contains(refused("scael"), "sparse_parameters names 'scael', which is no parameter");
    Bag bag;
    const std::vector<std::string> ignored = {"table.weight"};
    EXPECT_NO_THROW(DistributedDataParallel(bag, communicator,
                                            {.parameters_to_ignore = ignored,
                                             .sparse_parameters = ignored,
                                             .delayed_parameters = ignored}))
        << "it is a parameter all the same";
  });
}

}  // namespace
}  // namespace stretto

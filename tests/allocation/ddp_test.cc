// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What DistributedDataParallel allocates in a pass, beyond the module's own allocations, does not
// depend on the number of parameters.

#include <optional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/allocation/counter.h"
#include "tests/support/torch_models.h"

namespace stretto::testing {
namespace {

constexpr int kSteps = 8;
constexpr double kTolerance = 2;  // Lists of libtorch's engine grow by doubling.

torch::nn::Sequential layers(int count) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) model->push_back(torch::nn::Linear(4, 4));
  return model;
}

// Allocations in a step of all ranks, after the first steps. `start` makes the function that runs a
// step from a model.
template <class Start>
double allocations_in_step(int layer_count, bool sets_to_none, const Start& start) {
  long counted = 0;
  run_ranks(kRanks, [&](Communicator& communicator) {
    auto model = layers(layer_count);
    const auto input = torch::ones({2, 4});
    start(model, communicator, [&](const auto& forward) {
      const auto step = [&] {
        model->zero_grad(sets_to_none);
        forward(input).sum().backward();
      };
      for (int i = 0; i < 5; ++i) step();
      std::optional<AllocationCount> count;
      communicator.barrier().wait();
      if (communicator.rank() == Rank(0)) count.emplace();
      communicator.barrier().wait();
      for (int i = 0; i < kSteps; ++i) step();
      communicator.barrier().wait();
      if (count) counted = count->value();
      communicator.barrier().wait();
    });
  });
  return static_cast<double>(counted) / kSteps;
}

// What the wrapper allocates in addition to the plain module.
double added(int layer_count, bool sets_to_none, bool find_unused) {
  const auto plain = [](auto& model, Communicator&, const auto& measure) {
    measure([&](const torch::Tensor& x) { return model->forward(x); });
  };
  const auto wrapped = [&](auto& model, Communicator& communicator, const auto& measure) {
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = find_unused});
    measure([&](const torch::Tensor& x) { return ddp.forward(x); });
  };
  return allocations_in_step(layer_count, sets_to_none, wrapped) -
         allocations_in_step(layer_count, sets_to_none, plain);
}

TEST(DdpAllocations, DoNotDependOnTheNumberOfParameters) {
  for (const bool sets_to_none : {true, false}) {
    for (const bool find_unused : {true, false}) {
      const double few = added(2, sets_to_none, find_unused);
      const double many = added(40, sets_to_none, find_unused);
      EXPECT_NEAR(few, many, kTolerance) << sets_to_none << find_unused;
      EXPECT_GT(few, 0) << "it is counted";
      EXPECT_LT(many, 60) << "of both ranks";
    }
  }
}

}  // namespace
}  // namespace stretto::testing

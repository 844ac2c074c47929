// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/torch_models.h"

// An optimizer that steps parameters while backward still runs gives the same bits as one that
// steps after it.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using Parameters = std::vector<torch::Tensor>;

// Makes two groups with different settings.
Optimizer adam(const Parameters& parameters) {
  const auto half = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Parameters(parameters.begin(), half));
  groups.emplace_back(Parameters(half, parameters.end()),
                      std::make_unique<torch::optim::AdamOptions>(1e-3));
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(1e-2));
}

// With three ranks, the mean is not complete before the sum if it is divided in halves.
void expect_same_bits_as_after_it(MeanDivision division) {
  run_ranks(3, [&](Communicator& communicator, int rank) {
    const DistributedDataParallelOptions options{.bucket_bytes = {64, 256},
                                                 .mean_division = division};
    Net early = net(), late = net();
    DistributedDataParallel early_ddp(early, communicator, options);
    DistributedDataParallel late_ddp(late, communicator, options);
    const Optimizer early_adam = adam(early->parameters()), late_adam = adam(late->parameters());
    early_ddp.step_in_backward(*early_adam);
    for (int step = 0; step < 6; ++step) {  // Buckets are rebuilt after the first.
      const Batch batch = part(global_batch(step), rank % kRanks);
      if (step == 5) early_ddp.step_after_backward();
      early_ddp.zero_grad();
      loss_of(early_ddp, batch).backward();
      if (step == 5) early_adam->step();
      late_ddp.zero_grad();
      loss_of(late_ddp, batch).backward();
      late_adam->step();
      expect_same_bits(*early, *late);
    }
  });
}

TEST(StepInBackward, HasTheBitsOfAStepAfterIt) {
  expect_same_bits_as_after_it(MeanDivision::after_sum);
}

TEST(StepInBackward, SeesTheMeanWhereverItIsDivided) {
  expect_same_bits_as_after_it(MeanDivision::before_sum);
  expect_same_bits_as_after_it(MeanDivision::half_each);
}

TEST(StepInBackward, ParametersChangeWhileBackwardRuns) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {16}});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ddp.step_in_backward(optimizer);
    const torch::Tensor before = model->last->weight.detach().clone();
    bool changed = false;
    model->first->weight.register_hook([&](const torch::Tensor& gradient) {
      changed = !torch::equal(before, model->last->weight);
      return gradient;
    });
    loss_of(ddp, global_batch(0)).backward();
    EXPECT_TRUE(changed) << "the first layer's gradient comes last";
  });
}

TEST(StepInBackward, PassesInsideNoSyncStepNothing) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ddp.step_in_backward(optimizer);
    const std::uint64_t before = ddp.parameter_hash();
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp, part(global_batch(0), communicator.rank().value())).backward();
    }
    EXPECT_EQ(ddp.parameter_hash(), before);
    loss_of(ddp, part(global_batch(1), communicator.rank().value())).backward();
    EXPECT_NE(ddp.parameter_hash(), before);
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
}

// Rank 1 never uses part b, and no rank uses it in step 2. Momentum would move it if it were
// stepped.
TEST(StepInBackward, UnusedParametersAreSteppedLikeAfterBackward) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches early = seeded<Branches>(1), late = seeded<Branches>(1);
    const DistributedDataParallelOptions options{.bucket_bytes = {16},
                                                 .find_unused_parameters = true};
    DistributedDataParallel early_ddp(early, communicator, options);
    DistributedDataParallel late_ddp(late, communicator, options);
    const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD early_sgd(early->parameters(), momentum);
    torch::optim::SGD late_sgd(late->parameters(), momentum);
    early_ddp.step_in_backward(early_sgd);
    for (int step = 0; step < 4; ++step) {
      const bool both = communicator.rank() == Rank(0) && step != 2;
      early_ddp.zero_grad();
      early_ddp.forward(global_batch(step).data, both).square().mean().backward();
      late_ddp.zero_grad();
      late_ddp.forward(global_batch(step).data, both).square().mean().backward();
      late_sgd.step();
      expect_same_bits(*early, *late);
    }
    EXPECT_NO_THROW(early_ddp.verify_replicas());
  });
}

TEST(StepInBackward, ReplicasThatDifferAfterAFailureAreFoundOut) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model = seeded<Branches>(1);
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {16}});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ddp.step_in_backward(optimizer);
    const auto step = [&](bool both) {
      ddp.forward(global_batch(0).data, both).square().mean().backward();
    };
    expect_contains(message_of<InvalidArgument>([&] { step(communicator.rank() == Rank(0)); }),
                    "2 parameters got no gradient on rank 1");
    expect_contains(message_of<Mismatch>([&] { step(true); }), "parameter 'b.");
  });
}

// The reducer does not know of parameters that are stepped at the end of the pass.
TEST(StepInBackward, AnOptimizerThatFailsOnOneRankEndsTheTrainingOfAll) {
  run_ranks(kRanks, [](Communicator& communicator) {
    struct Failing : torch::optim::SGD {
      using SGD::SGD;
      torch::Tensor step(LossClosure closure = nullptr) override {
        const auto is_own = [this](const torch::Tensor& each) { return each.is_same(besides); };
        const auto& stepped = param_groups()[0].params();
        if (std::ranges::any_of(stepped, is_own)) throw std::runtime_error("no such luck");
        return SGD::step(closure);
      }
      torch::Tensor besides;
    };
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    auto parameters = model->parameters();
    parameters.push_back(torch::ones({2}).set_requires_grad(true));
    Failing optimizer(parameters, torch::optim::SGDOptions(0.1));
    if (communicator.rank() == Rank(1)) optimizer.besides = parameters.back();
    ddp.step_in_backward(optimizer);
    const auto steps = [&] {
      for (int step = 0; step < 3; ++step) loss_of(ddp, part(global_batch(step), 0)).backward();
    };
    if (communicator.rank() == Rank(1)) {
      EXPECT_EQ(message_of<std::runtime_error>(steps), "no such luck");
    } else {
      expect_contains(message_of<Aborted>(steps), "an optimizer has failed");
    }
  });
}

TEST(StepInBackward, RanksWithDifferentNumbersOfBatches) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net early = net(), late = net();
    const auto train = [&](Net& model, bool in_backward) {
      DistributedDataParallel ddp(model, communicator, small_buckets());
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      if (in_backward) ddp.step_in_backward(optimizer);
      const auto loop = [&] {
        for (int step = 0; step < 3 + rank; ++step) {
          optimizer.zero_grad();
          loss_of(ddp, part(global_batch(step), rank)).backward();
          if (!in_backward) optimizer.step();
        }
      };
      ddp.join(loop, {.mean_over_ranks_with_data = true});
    };
    train(early, true);
    train(late, false);
    expect_same_bits(*early, *late);
  });
}

TEST(StepInBackward, SeveralOptimizersStepTheirOwnParameters) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net early = net(), late = net();
    const auto train = [&](Net& model, bool in_backward) {
      DistributedDataParallel ddp(model, communicator, small_buckets());
      torch::optim::SGD sgd(model->first->parameters(),
                            torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::Adam adam(model->last->parameters(), 0.01);
      if (in_backward) {
        ddp.step_in_backward(sgd);
        ddp.step_in_backward(adam);
        ddp.step_in_backward(sgd);  // The optimizer is already known.
      }
      for (int step = 0; step < 4; ++step) {
        if (step == 3 && in_backward) ddp.step_after_backward();
        ddp.zero_grad();
        loss_of(ddp, part(global_batch(step), rank)).backward();
        if (in_backward && step < 3) continue;
        sgd.step();
        adam.step();
      }
    };
    train(early, true);
    train(late, false);
    expect_same_bits(*early, *late);
  });
}

// An optimizer whose step() always fails.
struct Stuck : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure) override {
    TORCH_CHECK(false, "stuck");
    return {};
  }
};

TEST(StepInBackward, WhatAnOptimizerThrowsIsToldWithoutItsStack) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    Stuck optimizer(model->parameters(), 0.1);
    ddp.step_in_backward(optimizer);
    const auto text = message_of<Aborted>([&] { loss_of(ddp, global_batch(0)).backward(); });
    expect_contains(text, "has failed: stuck");
    EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
  });
}

// The second layer uses the last layer's weight without passing a gradient to it.
struct ReadTwiceImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(torch::linear(torch::linear(x, first), last.detach()), last).sum();
  }
  torch::Tensor first = register_parameter("first", torch::ones({kInputs, kInputs}));
  torch::Tensor last = register_parameter("last", torch::ones({kInputs, kInputs}));
};
TORCH_MODULE(ReadTwice);

TEST(StepInBackward, ValuesThatBackwardHasYetToReadAreNotChangedInSilence) {
  run_ranks(1, [](Communicator& communicator) {
    ReadTwice model;
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1}});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ddp.step_in_backward(optimizer);
    expect_contains(message_of<c10::Error>([&] {
                      ddp.forward(torch::ones({1, kInputs})).backward();
                    }),
                    "modified by an inplace operation");
  });
}

// The other model may be wrapped before or after the call.
TEST(StepInBackward, ParametersOfAnotherModelAreRefused) {
  run_ranks(1, [](Communicator& communicator) {
    torch::nn::Linear one(kInputs, kInputs), two(kInputs, 2);
    Parameters both = one->parameters();
    for (const torch::Tensor& parameter : two->parameters()) both.push_back(parameter);
    torch::optim::SGD optimizer(both, 0.1);
    const std::string text = "belongs to another DistributedDataParallel";
    DistributedDataParallel first(one, communicator);
    first.step_in_backward(optimizer);
    const DistributedDataParallel second(two, communicator);
    expect_contains(message_of<InvalidArgument>([&] {
                      first.forward(torch::ones({1, kInputs})).sum().backward();
                    }),
                    text);
    first.step_after_backward();
    expect_contains(message_of<InvalidArgument>([&] { first.step_in_backward(optimizer); }), text);
  });
}

// All trained parameters are in a checkpoint, and their gradients come before those of the ignored
// layer.
struct BehindIgnoredImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return Checkpoint::apply(ignored(x), &body).pow(2).mean();
  }
  torch::nn::Linear ignored = register_module("ignored", torch::nn::Linear(kInputs, 4));
  torch::nn::Linear body = register_module("body", torch::nn::Linear(4, 4));
};
TORCH_MODULE(BehindIgnored);

TEST(StepInBackward, ParametersOfNoModelAreSteppedThoughTheirGradientsComeLast) {
  run_ranks(1, [](Communicator& communicator) {
    BehindIgnored early = seeded<BehindIgnored>(1), late = seeded<BehindIgnored>(1);
    const DistributedDataParallelOptions options{
        .parameters_to_ignore = {"ignored.weight", "ignored.bias"}};
    DistributedDataParallel early_ddp(early, communicator, options);
    DistributedDataParallel late_ddp(late, communicator, options);
    torch::optim::SGD early_sgd(early->parameters(), 0.1), late_sgd(late->parameters(), 0.1);
    early_ddp.step_in_backward(early_sgd);
    for (int step = 0; step < 3; ++step) {
      early_ddp.zero_grad();
      early_ddp.forward(global_batch(step).data).backward();
      late_ddp.zero_grad();
      late_ddp.forward(global_batch(step).data).backward();
      late_sgd.step();
      expect_same_bits(*early, *late);
    }
  });
}

TEST(StepInBackward, LbfgsIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    torch::optim::LBFGS optimizer(model->parameters());
    expect_contains(message_of<InvalidArgument>([&] { ddp.step_in_backward(optimizer); }),
                    "cannot be stepped in parts");
  });
}

TEST(StepInBackward, ParametersInLowPrecisionAreNotStepped) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator,
                                {.mixed_precision = {.parameter_dtype = DType::bf16}});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    expect_contains(message_of<InvalidArgument>([&] { ddp.step_in_backward(optimizer); }),
                    "mixed_precision.parameter_dtype");
  });
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/replica.h"

#include <future>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/sharded_optimizer.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch/tensors.h"
#include "tests/support/torch_models.h"

// What programs do with a wrapped model, and which parameters a step uses.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

using Change = std::function<void(Net&)>;

// Runs steps of the replicas and of the reference, before and after `change`.
void expect_works_after(const Change& change, torch::ScalarType dtype = torch::kFloat) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    expect_step_like_one_process(ddp, reference, rank, 0);
    change(reference);
    change(model);
    expect_step_like_one_process(ddp, reference, rank, 1, dtype);
    expect_step_like_one_process(ddp, reference, rank, 2, dtype);
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
}

void load_other_values(Net& model) {
  Net other = net(17);
  std::stringstream file;
  torch::save(other, file);
  torch::load(model, file);
}

TEST(Replica, LoadedParametersAreReducedAsBefore) { expect_works_after(load_other_values); }

TEST(Replica, ParametersOfAnotherTypeAreReducedAsBefore) {
  expect_works_after([](Net& model) { model->to(torch::kDouble); }, torch::kDouble);
}

TEST(Replica, ParametersWithOtherMemoryAreReducedAsBefore) {
  expect_works_after([](Net& model) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.set_(parameter.clone());
  });
}

TEST(Replica, UnfrozenParametersAreReduced) {
  expect_works_after([](Net& model) { model->scale.set_requires_grad(true); });
}

TEST(Replica, FrozenParametersAreLeftOutAndComeBack) {
  expect_works_after([](Net& model) { model->shared->weight.set_requires_grad(false); });
  run_ranks(kRanks, [](Communicator& communicator) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    for (int step = 0; step < 4; ++step) {
      reference->last->weight.set_requires_grad(step % 2 == 0);
      model->last->weight.set_requires_grad(step % 2 == 0);
      expect_step_like_one_process(ddp, reference, communicator.rank().value(), step);
      EXPECT_EQ(model->last->weight.grad().defined(), step % 2 == 0);
    }
  });
}

// Applies `change` on rank 1 only, and expects a Mismatch with `text` from a step on both ranks.
void expect_found_out(const Change& change, const std::string& text) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto step = [&] {
      loss_of(ddp, part(global_batch(0), communicator.rank().value())).backward();
    };
    step();
    if (communicator.rank() == Rank(1)) change(model);
    expect_contains(message_of<Mismatch>(step), text);
  });
}

TEST(Replica, LoadingOnOneRankOnlyIsFoundOutInTheSameStep) {
  expect_found_out(load_other_values, "by the same values on all: do it on all ranks, or before");
}

TEST(Replica, TwoUsedInAnotherOrderAreFoundOutInTheSameStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net one = net();
    Net two = net();
    DistributedDataParallel first(one, communicator);
    DistributedDataParallel second(two, communicator);
    const auto step = [&] {
      loss_of(communicator.rank() == Rank(0) ? first : second, global_batch(0)).backward();
    };
    expect_contains(message_of<Mismatch>(step), "averaged gradients of different steps");
  });
}

TEST(Replica, OneParameterBelongsToOne) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel first(model, communicator);
    expect_contains(
        message_of<InvalidArgument>([&] { DistributedDataParallel second(model, communicator); }),
        "'first.weight' already belongs to a DistributedDataParallel");
  });
}

TEST(Replica, SeveralForwardPassesMayPrecedeABackwardPass) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net();
    (loss_of(*reference, global_batch(0)) + loss_of(*reference, global_batch(1))).backward();
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto one = loss_of(ddp, part(global_batch(0), rank));
    (one + loss_of(ddp, part(global_batch(1), rank))).backward();
    expect_close(model->first->weight.grad(), reference->first->weight.grad(), "first.weight");
    expect_close(model->last->bias.grad(), reference->last->bias.grad(), "last.bias");
  });
}

TEST(Replica, ChosenGradientsAreNoStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
    const auto output = ddp.forward(x, true).sum();
    const auto slope = torch::autograd::grad({output}, {x}, {}, true, true)[0];
    (output + slope.pow(2).sum()).backward();
    EXPECT_TRUE(model->b->bias.grad().defined());
  });
}

// Rank r trains on r + 1 equal batches.
void train_unevenly(Communicator& communicator, const UnevenInputsOptions& options,
                    float weight_of_alone) {
  torch::nn::Linear model(2, 1);
  torch::nn::BatchNorm1d norm(2);
  torch::nn::Sequential both(norm, model);
  DistributedDataParallel ddp(both, communicator);
  torch::optim::SGD optimizer(both->parameters(), 0.1);
  const auto before = model->bias.item<float>();
  const auto data = torch::tensor({{1.0f, 2.0f}, {-1.0f, 3.0f}});
  int steps = 0;
  ddp.join(
      [&] {
        for (int batch = 0; batch <= communicator.rank().value(); ++batch, ++steps) {
          optimizer.zero_grad();
          ddp.forward(data).sum().backward();
          optimizer.step();
        }
      },
      options);
  EXPECT_EQ(steps, communicator.rank().value() + 1);
  // The gradient of the bias is 2 on each rank that has data.
  const float expected = before - 0.1f * 2 * (1 + weight_of_alone);
  EXPECT_NEAR(model->bias.item<float>(), expected, 1e-6);
  EXPECT_NO_THROW(ddp.verify_replicas());
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2) << "that of the last rank";
  ddp.forward(data).sum().backward();  // All ranks take this step together.
}

TEST(Replica, RanksWithFewerBatchesFollowTheOthers) {
  run_ranks(kRanks, [](Communicator& communicator) { train_unevenly(communicator, {}, 0.5f); });
}

TEST(Replica, AMeanMayBeThatOfRanksWithData) {
  run_ranks(kRanks, [](Communicator& communicator) {
    train_unevenly(communicator, {.mean_over_ranks_with_data = true}, 1.0f);
  });
}

// Rank r has r + 1 batches in each epoch, and steps its momentum as often.
TEST(Replica, OptimizersThatJoinKnowsAreThoseOfTheLastRankToo) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const auto train = [&](bool known, bool in_backward) {
      Net model = net();
      DistributedDataParallel ddp(model, communicator);
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      if (in_backward) ddp.step_in_backward(optimizer);
      UnevenInputsOptions options;
      if (known) options.optimizers = {&optimizer};
      const auto step = [&] {
        optimizer.zero_grad();
        loss_of(ddp, part(global_batch(0), rank)).backward();
        if (!in_backward) optimizer.step();
      };
      const auto loop = [&] {
        for (int batch = 0; batch <= rank; ++batch) step();
      };
      ddp.join(loop, options);
      step();
      if (known || in_backward) ddp.verify_replicas();
      step();
      ddp.join(loop, options);
    };
    EXPECT_NO_THROW(train(true, false));
    EXPECT_NO_THROW(train(false, true));
    expect_contains(message_of<Mismatch>([&] { train(false, false); }),
                    "step 4, after join(), began with different parameters: name the optimizers");
  });
}

// A program may still need gradients after its loop, although no rank has computed them in it.
TEST(Replica, ARankWithoutBatchesKeepsGradientsThatNobodyComputes) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    model->register_parameter("spare", torch::ones({3}));
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto step = [&](bool both) {
      ddp.forward(torch::full({1, kInputs}, 0.3), both).sum().backward();
    };
    step(true);
    for (torch::Tensor& parameter : model->b->parameters()) parameter.set_requires_grad(false);
    const auto spare = model->named_parameters()["spare"];
    spare.mutable_grad() = torch::full({3}, 0.7);
    step(false);
    const auto before = model->b->weight.grad().clone();
    ddp.join([&] {
      for (int batch = 0; batch <= communicator.rank().value(); ++batch) step(false);
    });
    EXPECT_TRUE(torch::equal(model->b->weight.grad(), before)) << "frozen";
    EXPECT_TRUE(torch::equal(spare.grad(), torch::full({3}, 0.7))) << "unused";
  });
}

// Momentum moves a parameter whose gradient is zero, but not one without a gradient. Rank 0 has no
// data in the only step that uses b. Ranks have trained b until then, or unfreeze it for this step.
TEST(Replica, AfterJoinAllRanksHaveTheGradientsOfTheLastOne) {
  for (const bool unfreezes : {false, true}) {
    run_ranks(kRanks, [&](Communicator& communicator, int rank) {
      Branches model;
      const auto set_trained = [&](bool trained) {
        for (auto& parameter : model->b->parameters()) parameter.set_requires_grad(trained);
      };
      set_trained(!unfreezes);
      DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto step = [&](bool both) {
        optimizer.zero_grad(/*set_to_none=*/false);
        ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
        optimizer.step();
      };
      step(false);
      set_trained(true);
      ddp.join(
          [&] {
            if (rank == 1) step(true);
          },
          {.optimizers = {&optimizer}});
      EXPECT_TRUE(model->b->weight.grad().defined());
      step(false);
      EXPECT_NO_THROW(ddp.verify_replicas());
      ddp.join([&] {
        if (rank == 1) step(true);
        optimizer.zero_grad();
      });
      EXPECT_FALSE(model->b->weight.grad().defined()) << "rank 1 has thrown it away";
    });
  }
}

// The models could be a generator and its critic. Rank r has r + 1 batches for both.
TEST(Replica, SeveralModelsMayBeTrainedInOneLoop) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto build = [] {
      return torch::nn::Sequential(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 1));
    };
    auto one = build(), two = build();
    DistributedDataParallel first(one, communicator), second(two, communicator);
    torch::optim::SGD first_sgd(one->parameters(), 0.1), second_sgd(two->parameters(), 0.1);
    const auto data = torch::tensor({{1.0f, 2.0f}, {-1.0f, 3.0f}});
    const auto bias_of = [](torch::nn::Sequential& model) {
      return model->parameters().back().item<float>();
    };
    const float before_first = bias_of(one), before_second = bias_of(two);
    const auto train = [&](auto& ddp, torch::optim::SGD& optimizer, float factor) {
      optimizer.zero_grad();
      (ddp.forward(data) * factor).sum().backward();
      optimizer.step();
    };
    const auto loop = [&] {
      for (int batch = 0; batch <= communicator.rank().value(); ++batch) {
        train(first, first_sgd, 1);
        train(second, second_sgd, 10);
      }
    };
    first.join([&] { second.join(loop); });
    // The second batch counts half, because only one rank has it. The gradient is 2 * `factor`.
    EXPECT_NEAR(bias_of(one), before_first - 0.1f * 2 * 1.5f, 1e-5);
    EXPECT_NEAR(bias_of(two), before_second - 1 * 2 * 1.5f, 1e-5);
    first.verify_replicas();
    second.verify_replicas();
  });
}

// Rank 0 has no data left when rank 1 freezes all parameters but the table.
TEST(Replica, InsideJoinDenseParametersMayBeFrozenNextToSparseOnes) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    torch::nn::Linear last(2, 1);
    torch::nn::Sequential model(table, last);
    DistributedDataParallel ddp(model, communicator);
    const auto freeze = [&] {
      for (auto& parameter : last->parameters()) parameter.set_requires_grad(false);
    };
    const auto expect_mean_in = [&](int row) {  // One rank uses it; its gradient is last->weight.
      expect_close(table->weight.grad().to_dense()[row], last->weight[0] / kRanks, "table");
    };
    const auto train = [&](int row) {
      ddp.zero_grad();
      ddp.forward(torch::tensor({row})).sum().backward();
      expect_mean_in(row);
    };
    ddp.join([&] {
      for (int batch = 0; rank == 1 && batch < 3; ++batch) {
        if (batch == 1) freeze();
        train(batch);
      }
    });
    freeze();
    train(3 - rank);
    expect_mean_in(2 + rank);
  });
}

// Rank 0 has no data left when rank 1 unfreezes parameters that both had frozen.
TEST(Replica, InsideJoinParametersMayBeFrozenInEveryOtherStep) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    ddp.join([&] {
      for (int batch = 0; batch <= rank; ++batch) {
        for (torch::Tensor& parameter : model->b->parameters()) {
          parameter.set_requires_grad(batch % 2 == 1);
        }
        ddp.zero_grad();
        ddp.forward(torch::ones({1, kInputs}), true).sum().backward();
      }
    });
    if (rank == 1) expect_close(model->b->bias.grad(), torch::full({2}, 0.5), "b.bias");
  });
}

TEST(Replica, InsideJoinABackwardPassThroughTwoModelsIsRefused) {
  for (const auto policy : {std::launch::deferred, std::launch::async}) {  // Here, on a thread.
    run_ranks(kRanks, [&](Communicator& communicator) {
      Branches one, two;
      DistributedDataParallel first(one, communicator), second(two, communicator);
      const auto backward = [&] {
        const auto x = torch::ones({1, kInputs});
        (first.forward(x, true) + second.forward(x, true)).sum().backward();
      };
      const bool has_data = communicator.rank() == Rank(1);
      const auto loop = [&] {
        if (has_data) std::async(policy, backward).get();
      };
      const auto join_both = [&] { first.join([&] { second.join(loop); }); };
      const auto text = message_of<Error>(join_both);
      EXPECT_NE(text, "");
      if (has_data) expect_contains(text, "each backward pass must go through one of them only");
    });
  }
}

TEST(Replica, WhatJoinCannotFollowIsRefused) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    const auto train = [&] {
      ddp.join([&] {
        for (int batch = 0; batch <= communicator.rank().value(); ++batch) {
          ddp.forward(torch::ones({1, kInputs}), true).sum().backward();
          sharded.step();
        }
      });
    };
    const auto text = message_of<Mismatch>(train);
    if (communicator.rank() == Rank(0)) expect_contains(text, "joinables names, such as ShardedO");
  });
  run_ranks(1, [](Communicator& communicator) {
    SyncBatchNorm model(communicator, 2);
    DistributedDataParallel ddp(model, communicator);
    expect_contains(message_of<InvalidArgument>([&] { ddp.join([] {}); }), "SyncBatchNorm");
  });
}

TEST(Replica, IgnoredParametersStayTheRanksOwn) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto rank = static_cast<float>(communicator.rank().value());
    Branches model;
    torch::nn::init::constant_(model->b->bias, rank);
    DistributedDataParallel ddp(model, communicator,
                                {.parameters_to_ignore = {"b.weight", "b.bias"}});
    ddp.forward(torch::ones({1, kInputs}) * rank, true).sum().backward();
    expect_close(model->b->bias, torch::full({2}, rank), "own value");
    expect_close(model->b->weight.grad(), torch::full({2, kInputs}, rank), "own gradient");
    expect_close(model->a->weight.grad(), torch::full({2, kInputs}, 0.5f), "mean");
  });
}

TEST(Replica, AMisspeltNameOfAnIgnoredParameterIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    const auto wrap = [&](const std::string& name) {
      torch::nn::BatchNorm1d model(2);
      DistributedDataParallel ddp(model, communicator, {.parameters_to_ignore = {name}});
    };
    EXPECT_NO_THROW(wrap("running_mean"));
    expect_contains(message_of<InvalidArgument>([&] { wrap("runing_mean"); }),
                    "names 'runing_mean', which is neither a parameter nor a buffer");
  });
}

TEST(Replica, HabitsOfModulesWork) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    EXPECT_EQ(ddp->first->bias.sizes(), (*ddp).first->bias.sizes());
    EXPECT_EQ(ddp.parameters().size(), ddp.named_parameters().size());
    EXPECT_TRUE(ddp.buffers().empty());
    ddp.eval();
    EXPECT_FALSE(ddp.is_training());
    ddp.train();
    std::stringstream file;
    torch::save(ddp, file);
    Net copy = net(5);
    torch::load(copy, file);
    expect_equal_parameters(*copy, *model);
    file.seekg(0);
    torch::load(ddp, file);
    ddp.to(torch::kDouble);
    EXPECT_EQ(model->first->weight.scalar_type(), torch::kDouble);
    torch::Tensor rank = torch::full({2}, static_cast<float>(communicator.rank().value()));
    communicator.all_reduce(rank, {.op = ReduceOp::mean}).wait();
    expect_close(rank, torch::full({2}, 0.5), "mean of ranks");
    communicator.broadcast(rank).wait();
    communicator.all_reduce(rank).wait();
    expect_close(rank, torch::full({2}, 1.0), "sum");
    const torch::Tensor all = torch::zeros({kRanks, 2});
    communicator.all_gather(rank, all).wait();
    expect_close(all, torch::ones({kRanks, 2}), "all ranks");
    static_assert(!OutputBuffer<torch::Tensor>, "a temporary may own its memory");
    EXPECT_THROW(view_of(torch::ones({4, 4}).slice(1, 0, 2)), InvalidArgument);
  });
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/joinable.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/parameter_averaging.h"
#include "stretto/torch/sharded_optimizer.h"
#include "tests/support/at_the_end.h"
#include "tests/support/expect_contains.h"
#include "tests/support/torch_models.h"

// Objects that communicate besides the models in a loop that join() runs.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

using Counts = std::vector<int>;  // Numbers of batches, by rank.

std::unique_ptr<torch::optim::Optimizer> optimizer_of(torch::nn::Module& module, bool is_adam) {
  namespace optim = torch::optim;
  if (is_adam) return std::make_unique<optim::Adam>(module.parameters(), optim::AdamOptions(1e-2));
  return std::make_unique<optim::SGD>(module.parameters(), optim::SGDOptions(0.1).momentum(0.9));
}

double learning_rate(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

// Takes a step with gradient clipping and a new learning rate, which only ranks with data set.
template <class Stepped>
void train(DistributedDataParallel<BranchesImpl>& ddp, torch::optim::Optimizer& optimizer,
           Stepped& stepped, int batch, int rank) {
  ddp.zero_grad();
  const auto x = with_seed(static_cast<std::uint64_t>(100 + 10 * batch + rank), [] {
    return torch::randn({4, kInputs});
  });
  ddp.forward(x, /*both=*/batch % 2 == 0).pow(2).sum().backward();
  torch::nn::utils::clip_grad_norm_(ddp.parameters(), 0.5);
  for (auto& group : optimizer.param_groups()) group.options().set_lr(1e-2 / (1 + batch));
  stepped.step();
}

// Trains with the optimizer itself and with its sharded form: an epoch in which rank r has
// `counts[r]` batches, and one more step on all ranks.
void expect_the_same_sharded(const Counts& counts, bool is_adam, bool mean_over_ranks_with_data) {
  run_ranks(static_cast<int>(counts.size()), [&](Communicator& communicator, int rank) {
    Branches whole_model = seeded<Branches>(1), model = seeded<Branches>(1);
    const DistributedDataParallelOptions options = {.find_unused_parameters = true};
    DistributedDataParallel whole_ddp(whole_model, communicator, options);
    DistributedDataParallel ddp(model, communicator, options);
    const auto whole = optimizer_of(*whole_model, is_adam), own = optimizer_of(*model, is_adam);
    ShardedOptimizer sharded(*own, communicator);
    const int batches = counts[static_cast<std::size_t>(rank)];
    whole_ddp.join(
        [&] {
          for (int i = 0; i < batches; ++i) train(whole_ddp, *whole, *whole, i, rank);
        },
        {.mean_over_ranks_with_data = mean_over_ranks_with_data, .optimizers = {whole.get()}});
    ddp.join(
        [&] {
          for (int i = 0; i < batches; ++i) {
            train(ddp, *own, sharded, i, rank);
            if (i == 1) sharded.gather_state();  // For a checkpoint, say.
          }
        },
        {.mean_over_ranks_with_data = mean_over_ranks_with_data, .joinables = {&sharded}});
    expect_same_bits(*model, *whole_model);
    EXPECT_EQ(learning_rate(*own), learning_rate(*whole));
    train(whole_ddp, *whole, *whole, 8, rank);
    train(ddp, *own, sharded, 8, rank);
    expect_same_bits(*model, *whole_model);
  });
}

TEST(Joinable, AShardedOptimizerHasTheBitsOfTheOptimizerItself) {
  for (const bool is_adam : {true, false}) {
    for (const Counts& counts : {Counts{3}, {1, 3}, {2, 0}, {0, 1, 4}, {3, 0, 2}, {1, 2, 3, 0}}) {
      expect_the_same_sharded(counts, is_adam, false);
    }
    expect_the_same_sharded({1, 3, 0}, is_adam, true);
  }
}

// Rank 0 steps the table, but has no data.
TEST(Joinable, SparseGradientsReachTheRankThatStepsThem) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    const auto build = [] {
      return with_seed(1, [] {
        return torch::nn::Sequential(
            torch::nn::Embedding(torch::nn::EmbeddingOptions(40, 2).sparse(true)),
            torch::nn::Linear(2, 1));
      });
    };
    auto whole_model = build(), model = build();
    DistributedDataParallel whole_ddp(whole_model, communicator), ddp(model, communicator);
    torch::optim::SGD whole(whole_model->parameters(), 0.1), own(model->parameters(), 0.1);
    ShardedOptimizer sharded(own, communicator);
    ASSERT_EQ(sharded.owners().front(), Rank(0));
    const auto epoch = [rank](auto& trained, auto& stepped) {
      for (int batch = 0; batch < 3 * rank; ++batch) {
        trained.zero_grad();
        trained.forward(torch::tensor({batch, batch + 1})).sum().backward();
        stepped.step();
      }
    };
    whole_ddp.join([&] { epoch(whole_ddp, whole); }, {.optimizers = {&whole}});
    ddp.join([&] { epoch(ddp, sharded); }, {.joinables = {&sharded}});
    expect_same_bits(*model, *whole_model);
  });
}

// The parameters of rank r grow by `growth[r]` in each of its `counts[r]` steps. Returns the
// parameters after the loop, which are the same on all ranks.
std::vector<float> averaged(const Counts& counts, const std::vector<float>& growth,
                            const ParameterAveragingOptions& options, int average_all_after = -1) {
  std::vector<float> result;
  run_ranks(static_cast<int>(counts.size()), [&](Communicator& communicator, int rank) {
    const auto self = static_cast<std::size_t>(rank);
    torch::nn::Linear model(1, 1);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.zero_();
    DistributedDataParallel ddp(model, communicator);
    ParameterAveraging averaging(model->parameters(), communicator, options);
    const auto loop = [&] {
      for (int step = 0; step < counts[self]; ++step) {
        for (auto& parameter : model->parameters()) parameter.add_(growth[self]);
        averaging.after_step();
        if (step == average_all_after) averaging.average_all();
      }
    };
    AtTheEnd comparison(communicator, [&] { EXPECT_NO_THROW(ddp.verify_replicas()); });
    ddp.join(loop, {.joinables = {&averaging, &comparison}});
    EXPECT_EQ(averaging.steps(), static_cast<std::uint64_t>(*std::ranges::max_element(counts)));
    if (rank == 0) result = {model->weight.item<float>(), model->bias.item<float>()};
    // No rank has anything new.
    ddp.join([] {}, {.joinables = {&averaging, &comparison}});
  });
  return result;
}

TEST(Joinable, AnAverageIsThatOfRanksWhichHaveSteppedSinceTheOneBefore) {
  using Values = std::vector<float>;
  // Rank 0's only step counts in the first average, and not in the second.
  EXPECT_EQ(averaged({1, 4, 2}, {2, 2, 3}, {.period = 2}), (Values{8, 8}));
  // The steps of ranks 1 and 2 since the last average are averaged when the loop has ended.
  EXPECT_EQ(averaged({0, 3, 3}, {9, 2, 3}, {.period = 2}), (Values{7.5, 7.5}));
  // Each average is of one parameter in turn, so rank 0's step counts once in each.
  EXPECT_EQ(averaged({1, 3}, {2, 4}, {.partitions = 2}), (Values{11, 9}));
  EXPECT_EQ(averaged({0, 2}, {9, 4}, {.period = 100}, /*average_all_after=*/1), (Values{8, 8}));
  // In warm-up steps gradients are averaged, and ranks without data do not follow.
  EXPECT_EQ(averaged({1, 4}, {1, 1}, {.warm_up_steps = 2}), (Values{4, 4}));
  EXPECT_EQ(averaged({2, 2}, {2, 4}, {}), (Values{6, 6}));
}

// The sum does not fit into 16 bits.
TEST(Joinable, AnAverageOfSomeRanksDoesNotOverflow) {
  const std::vector<float> values = {9, 60000, 60032, 60032};
  run_ranks(4, [&](Communicator& communicator, int rank) {
    const auto parameter = torch::zeros({3}, torch::kHalf);
    torch::nn::Linear model(1, 1);
    DistributedDataParallel ddp(model, communicator);
    ParameterAveraging averaging({parameter}, communicator);
    const auto loop = [&] {
      if (rank == 0) return;
      parameter.fill_(values[static_cast<std::size_t>(rank)]);
      averaging.after_step();
    };
    ddp.join(loop, {.joinables = {&averaging}});
    EXPECT_TRUE(parameter.equal(torch::full({3}, 60021.3f).to(torch::kHalf))) << parameter;
  });
}

// Announces an average, and then runs another operation.
class Breach : public Joinable {
 public:
  explicit Breach(Communicator& communicator) : Joinable(communicator) {}
  void average() {
    announce(1);
    std::vector<double> contributors = {1};
    communicator().all_reduce(contributors).wait();
    communicator().barrier().wait();
  }

 private:
  void follow(std::uint64_t /*what*/) override {}
  void finish(Rank /*last*/) override {}
};

TEST(Joinable, AnAverageThatFailsLeavesTheParametersOfARankWithoutNews) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    const auto parameter = torch::full({3}, 7.0f);
    torch::nn::Linear model(1, 1);
    DistributedDataParallel ddp(model, communicator);
    ParameterAveraging averaging({parameter}, communicator);
    Breach breach(communicator);
    const auto train = [&] {
      if (rank == 0) return ddp.join([] {}, {.joinables = {&averaging}});
      ddp.join([&] { breach.average(); }, {.joinables = {&breach}});
    };
    EXPECT_THROW(train(), Mismatch);
    EXPECT_TRUE(parameter.equal(torch::full({3}, 7.0f))) << parameter;
  });
}

// Options whose class does not define how they are written.
struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  double get_lr() const override { return 1; }
};
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<torch::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<OwnOptions>()) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

TEST(Joinable, AnOptimizerWhoseSettingsCannotBeSentIsRefusedOnAllRanks) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    OwnOptimizer optimizer(ddp.parameters());
    ShardedOptimizer sharded(optimizer, communicator);
    const auto loop = [&] {
      if (rank == 0) return;
      ddp.forward(torch::ones({1, kInputs}), true).sum().backward();
      sharded.step();
    };
    const auto train = [&] { ddp.join(loop, {.joinables = {&sharded}}); };
    expect_contains(message_of<InvalidArgument>(train),
                    "override serialize() of its OptimizerOptions");
    sharded.step();  // It works outside of join().
    EXPECT_NO_THROW(communicator.barrier().wait());
  });
}

// Rank 0 has run a forward pass without a backward pass, so its parameters are 16-bit copies when
// it follows rank 1 in the inner join().
TEST(Joinable, LowPrecisionCopiesOfAllModelsArePutBackBeforeARankFollows) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model, critic;
    DistributedDataParallel ddp(
        model, communicator,
        {.find_unused_parameters = true, .mixed_precision = {.parameter_dtype = DType::bf16}});
    DistributedDataParallel inner(critic, communicator);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    const auto before = model->a->bias.detach().clone();
    const auto loop = [&] {
      const auto output = ddp.forward(torch::ones({1, kInputs}), true);
      if (rank == 0) return;
      output.sum().backward();
      sharded.step();
    };
    AtTheEnd comparison(communicator, [&] { EXPECT_NO_THROW(ddp.verify_replicas()); });
    ddp.join([&] { inner.join(loop); }, {.joinables = {&sharded, &comparison}});
    EXPECT_EQ(model->a->bias.scalar_type(), torch::kFloat);
    expect_close(model->a->bias, before - 0.1f * 0.5f, "half the gradient of rank 1");
  });
}

TEST(Joinable, MayBeNamedAgainAfterAnExceptionInTheLoop) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    const auto fail = [] { throw std::runtime_error("of the loop"); };
    EXPECT_THROW(ddp.join(fail, {.joinables = {&sharded}}), std::runtime_error);
    sharded.step();  // All ranks call it, without announcing anything.
    const auto before = model->a->bias.detach().clone();
    const auto loop = [&] {
      if (rank == 0) return;
      ddp.forward(torch::ones({1, kInputs}), true).sum().backward();
      sharded.step();
    };
    ddp.join(loop, {.joinables = {&sharded}});
    expect_close(model->a->bias, before - 0.1f * 0.5f, "half the gradient of rank 1");
  });
}

TEST(Joinable, WhatIsDestroyedInTheLoopIsReportedOnAllRanks) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    auto averaging = std::make_unique<ParameterAveraging>(ddp.parameters(), communicator);
    const auto loop = [&] {
      if (rank == 0) return averaging.reset();
      averaging->after_step();
    };
    const auto text = message_of<Error>([&] { ddp.join(loop, {.joinables = {averaging.get()}}); });
    expect_contains(text, "was destroyed in the loop on rank 0: it must live until");
  });
}

TEST(Joinable, DifferentOperationsOfRanksAreToldByTheirNames) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    ParameterAveraging averaging(ddp.parameters(), communicator);
    const auto text_of = [&](const std::function<void()>& loop) {
      return message_of<Mismatch>([&] { ddp.join(loop, {.joinables = {&sharded, &averaging}}); });
    };
    expect_contains(text_of([&] {
                      if (rank == 0) return sharded.step();
                      sharded.gather_state();
                    }),
                    "one is about to run step() of the ShardedOptimizer (joinable 0) and the other "
                    "one gather_state() of the ShardedOptimizer (joinable 0)");
    expect_contains(text_of([&] {
                      if (rank == 0) return averaging.average_all();
                      (void)averaging.after_step();
                    }),
                    "one is about to run average_all() of the ParameterAveraging (joinable 1) and "
                    "the other one after_step() number 1 of the ParameterAveraging (joinable 1)");
  });
}

TEST(Joinable, WhatCannotJoinIsRefused) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Branches model, critic;
    DistributedDataParallel ddp(model, communicator);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    const auto group = communicator.new_group({0, 1});
    ParameterAveraging elsewhere(ddp.parameters(), *group);
    const auto refused = [&](const UnevenInputsOptions& options) {
      return message_of<InvalidArgument>([&] { ddp.join([] {}, options); });
    };
    expect_contains(refused({.joinables = {&sharded, &sharded}}), "names something twice");
    expect_contains(refused({.joinables = {&elsewhere}}), "of another communicator");
    expect_contains(refused({.joinables = {nullptr}}), "names a null pointer");
    expect_contains(refused({.optimizers = {&optimizer}, .joinables = {&sharded}}),
                    "name the ShardedOptimizer in UnevenInputsOptions::joinables only");
    DistributedDataParallel inner(critic, communicator);
    const auto refused_inside = [&](const UnevenInputsOptions& outside,
                                    const UnevenInputsOptions& inside) {
      return message_of<InvalidArgument>(
          [&] { ddp.join([&] { inner.join([] {}, inside); }, outside); });
    };
    expect_contains(refused_inside({.joinables = {&sharded}}, {.optimizers = {&optimizer}}),
                    "name the ShardedOptimizer");
    expect_contains(refused_inside({.optimizers = {&optimizer}}, {.joinables = {&sharded}}),
                    "name the ShardedOptimizer");
    UnevenInputsOptions options;
    if (rank == 1) options.joinables = {&sharded};
    const auto loop = [&] {
      if (rank == 1) sharded.step();
    };
    const Status status = failure_of([&] { ddp.join(loop, options); });
    expect_contains(std::string(status.message()),
                    "and this rank has not: name the same on all ranks");
    const bool is_aborted = rank == 1 && status.code() == StatusCode::aborted;
    EXPECT_TRUE(is_aborted || status.code() == StatusCode::mismatch) << status.message();
  });
}

}  // namespace
}  // namespace stretto

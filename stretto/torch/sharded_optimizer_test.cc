// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sharded_optimizer.h"

#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/parameter_averaging.h"
#include "tests/support/own_timeout.h"
#include "tests/support/torch_models.h"

// Sharded optimizer state, and parameters that are averaged every few steps.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

using Parameters = std::vector<torch::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)>;

template <class Optimizer, class Options>
Make maker(Options options) {
  return [options](Parameters parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Make> optimizers() {
  namespace optim = torch::optim;
  return {maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
          maker<optim::Adam>(optim::AdamOptions(1e-2).amsgrad(true)),
          maker<optim::AdamW>(optim::AdamWOptions(1e-2).weight_decay(0.1)),
          maker<optim::RMSprop>(optim::RMSpropOptions(1e-2).momentum(0.5)),
          maker<optim::Adagrad>(optim::AdagradOptions(1e-2))};
}

// Lists two parameters twice, as libtorch does with those of a layer that has two names.
Parameters listed(const Net& model) {
  Parameters list = model->parameters();
  list.insert(list.end(), {list[0], list[1]});
  return list;
}

TEST(ShardedOptimizer, HasTheBitsOfTheOptimizerItself) {
  run_ranks(3, [](Communicator& communicator) {
    for (const Make& make : optimizers()) {
      Net sharded_net = net(), whole_net = net();
      const auto optimizer = make(listed(sharded_net));
      const auto whole = make(listed(whole_net));
      ShardedOptimizer sharded(*optimizer, communicator);
      for (int step = 0; step < 4; ++step) {
        set_gradients(*sharded_net, step);
        sharded.step();
        set_gradients(*whole_net, step);
        whole->step();
        expect_same_bits(*sharded_net, *whole_net);
      }
      std::size_t own = 0;
      for (const Rank owner : sharded.owners()) own += owner == communicator.rank() ? 1 : 0;
      EXPECT_LE(optimizer->state().size(), own);
      EXPECT_LT(own, sharded.owners().size());
    }
  });
}

// Two ranks save the state. Three ranks and a program without shards load it.
TEST(ShardedOptimizer, TheStateOfAllRanksIsSavedAndReadByAnyNumber) {
  for (const Make& make : optimizers()) {
    Net saved_net = net();
    std::string file;
    run_ranks(2, [&](Communicator& communicator) {
      Net model = net();
      const auto optimizer = make(model->parameters());
      ShardedOptimizer sharded(*optimizer, communicator);
      for (int step = 0; step < 3; ++step) {
        set_gradients(*model, step);
        sharded.step();
      }
      sharded.gather_state();
      if (communicator.rank() != Rank(0)) return;
      std::stringstream text;
      torch::save(*optimizer, text);
      file = text.str();
      saved_net = model;
    });
    const auto resume = [&](Net& model, torch::optim::Optimizer& optimizer) {
      const torch::NoGradGuard no_grad;
      for (const auto& item : saved_net->named_parameters()) {
        model->named_parameters()[item.key()].copy_(item.value());
      }
      std::stringstream text(file);
      torch::load(optimizer, text);
    };
    Net alone = net(7);
    const auto plain = make(alone->parameters());
    resume(alone, *plain);
    set_gradients(*alone, 3);
    plain->step();
    run_ranks(3, [&](Communicator& communicator) {
      Net model = net(8);
      const auto optimizer = make(model->parameters());
      ShardedOptimizer sharded(*optimizer, communicator);
      resume(model, *optimizer);
      set_gradients(*model, 3);
      sharded.step();
      expect_same_bits(*model, *alone);
    });
  }
}

TEST(ShardedOptimizer, MoreRanksThanParameters) {
  run_ranks(3, [](Communicator& communicator) {
    torch::Tensor parameter = torch::ones({4}).set_requires_grad(true);
    torch::optim::Adam optimizer({parameter}, torch::optim::AdamOptions(0.1));
    ShardedOptimizer sharded(optimizer, communicator);
    parameter.sum().backward();
    sharded.step();
    EXPECT_LT(parameter.sum().item<float>(), 4);
    sharded.gather_state();
    EXPECT_EQ(optimizer.state().size(), 1u);
  });
}

TEST(ShardedOptimizer, WhatCannotBeSharedOutIsRefused) {
  run_ranks(2, [](Communicator& communicator) {
    Net model = net();
    torch::optim::LBFGS lbfgs(model->parameters());
    expect_contains(message_of<InvalidArgument>([&] { ShardedOptimizer(lbfgs, communicator); }),
                    "LBFGS");
    const int width = communicator.rank().value() + 2;
    torch::optim::SGD unlike({torch::ones({width})}, 0.1);
    expect_contains(message_of<Mismatch>([&] { ShardedOptimizer(unlike, communicator); }), "shape");
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ShardedOptimizer sharded(optimizer, communicator);
    optimizer.add_param_group({{torch::ones({2})}});
    expect_contains(message_of<InvalidArgument>([&] { sharded.step(); }), "other parameters");
  });
}

// An SGD that is not one of libtorch's. Its state can be cloned, and it fails when told to.
class OwnOptimizer : public torch::optim::Optimizer {
 public:
  explicit OwnOptimizer(Parameters parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    if (fails) throw std::runtime_error("no memory for the step");
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : param_groups()[0].params()) {
      if (!parameter.grad().defined()) continue;
      parameter.sub_(parameter.grad(), 0.1);
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(torch::zeros_like(parameter));
      state_[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    return {};
  }
  bool fails = false;
};

TEST(ShardedOptimizer, TheStateOfAnotherKindIsGatheredByNobody) {
  run_ranks(2, [](Communicator& communicator) {
    Net model = net();
    OwnOptimizer optimizer(model->parameters());
    ShardedOptimizer sharded(optimizer, communicator);
    set_gradients(*model, 0);
    sharded.step();
    expect_contains(message_of<InvalidArgument>([&] { sharded.gather_state(); }), "is not known");
    sharded.step();  // No rank waits for another.
  });
}

TEST(ShardedOptimizer, WhatTheOptimizerOfOneRankThrowsEndsTheStepOfAll) {
  run_ranks(3, [](Communicator& communicator) {
    Net model = net();
    OwnOptimizer optimizer(model->parameters());
    ShardedOptimizer sharded(optimizer, communicator);
    set_gradients(*model, 0);
    optimizer.fails = communicator.rank() == Rank(1);
    if (optimizer.fails) {
      EXPECT_THROW(sharded.step(), std::runtime_error);
    } else {
      expect_contains(message_of<Aborted>([&] { sharded.step(); }),
                      "the optimizer has failed: no memory for the step");
    }
  });
}

// Returns the error of `build` on rank 1, the only rank that refuses something. The others are told
// at once.
std::string told_to_all(const Communicator& communicator, const std::function<void()>& build) {
  if (communicator.rank() == Rank(1)) return message_of<InvalidArgument>(build);
  const std::string text = message_of<Mismatch>(build);
  expect_contains(text, "refusal none on ranks 0, 2; ");
  expect_contains(text, "on rank 1");
  return text;
}

TEST(ShardedOptimizer, WhatOneRankRefusesIsToldToAll) {
  run_ranks(3, [](Communicator& communicator) {
    const bool refuses = communicator.rank() == Rank(1);
    Net model = net();
    torch::optim::SGD sgd(model->parameters(), 0.1);
    torch::optim::SGD none({torch::ones({2}, torch::kMeta)}, 0.1);
    torch::optim::LBFGS lbfgs(model->parameters());
    const auto with = [&](torch::optim::Optimizer& refused) {
      return told_to_all(communicator,
                         [&] { ShardedOptimizer(refuses ? refused : sgd, communicator); });
    };
    expect_contains(with(lbfgs), "LBFGS");
    expect_contains(with(none), "not a dense tensor that has memory");
  });
}

TEST(ShardedOptimizer, TheTimeoutHoldsForTheConstructor) {
  OwnTimeout timeout;
  run_ranks(kRanks, [&](Communicator& communicator) {
    Net model = net();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    timeout.expect_of(communicator,
                      [&] { ShardedOptimizer(optimizer, communicator, OwnTimeout::kTimeout); });
  });
}

// Returns four parameters of one element, which is the rank's number.
Parameters ranks_number(const Communicator& communicator) {
  Parameters result;
  for (int i = 0; i < 4; ++i) {
    result.push_back(torch::full({1}, static_cast<float>(communicator.rank().value())));
  }
  return result;
}

std::vector<float> values(const Parameters& parameters) {
  std::vector<float> result;
  for (const torch::Tensor& parameter : parameters) result.push_back(parameter.item<float>());
  return result;
}

TEST(ParameterAveraging, AllParametersEverySoManySteps) {
  run_ranks(2, [](Communicator& communicator) {
    Parameters parameters = ranks_number(communicator);
    ParameterAveraging averaging(parameters, communicator, {.period = 3, .warm_up_steps = 2});
    std::string averaged;
    for (int step = 1; step <= 8; ++step) averaged += averaging.after_step() ? '1' : '0';
    EXPECT_EQ(averaged, "00001001");
    EXPECT_EQ(values(parameters), (std::vector<float>{0.5F, 0.5F, 0.5F, 0.5F}));
    EXPECT_EQ(averaging.steps(), 8u);
    ParameterAveraging resumed(parameters, communicator, {.period = 3, .warm_up_steps = 2});
    resumed.set_steps(averaging.steps());
    for (int step = 9; step <= 11; ++step) averaged += resumed.after_step() ? '1' : '0';
    EXPECT_EQ(averaged, "00001001001");
  });
}

TEST(ParameterAveraging, OnePartitionAfterTheOther) {
  run_ranks(2, [](Communicator& communicator) {
    const auto own = static_cast<float>(communicator.rank().value());
    Parameters parameters = ranks_number(communicator);
    ParameterAveraging averaging(parameters, communicator, {.partitions = 2});
    averaging.after_step();
    EXPECT_EQ(values(parameters), (std::vector<float>{0.5F, 0.5F, own, own}));
    averaging.after_step();
    EXPECT_EQ(values(parameters), (std::vector<float>{0.5F, 0.5F, 0.5F, 0.5F}));
    parameters[0].fill_(own);
    averaging.after_step();
    EXPECT_EQ(values(parameters).front(), 0.5F) << "the first one's turn comes again";
    for (auto& parameter : parameters) parameter.fill_(own);
    averaging.average_all();
    EXPECT_EQ(values(parameters), (std::vector<float>{0.5F, 0.5F, 0.5F, 0.5F}));
  });
}

TEST(ParameterAveraging, AParameterThatIsListedTwiceIsOne) {
  run_ranks(2, [](Communicator& communicator) {
    const torch::Tensor own = ranks_number(communicator).front();
    ParameterAveraging averaging({own, own}, communicator, {.partitions = 2});
    EXPECT_TRUE(averaging.after_step());
    EXPECT_EQ(own.item<float>(), 0.5F);
    own.fill_(communicator.rank().value());
    averaging.after_step();
    EXPECT_EQ(own.item<float>(), communicator.rank().value()) << "the other partition is empty";
  });
}

TEST(ParameterAveraging, MorePartitionsThanParametersAndOddTensors) {
  run_ranks(2, [](Communicator& communicator) {
    const auto own = static_cast<float>(communicator.rank().value());
    torch::Tensor transposed = torch::full({2, 3}, own).t();
    torch::Tensor with_gaps = torch::full({4, 4}, own).slice(1, 0, 2);
    ParameterAveraging averaging({transposed, with_gaps, torch::ones({0})}, communicator,
                                 {.partitions = 5});
    for (int step = 0; step < 5; ++step) averaging.after_step();
    EXPECT_TRUE(torch::equal(transposed, torch::full({3, 2}, 0.5)));
    EXPECT_TRUE(torch::equal(with_gaps, torch::full({4, 2}, 0.5)));
  });
}

// With plain SGD and an average after each step, averaging parameters equals averaging gradients.
TEST(ParameterAveraging, LocalSgdLearns) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net local = net(), synchronous = net();
    DistributedDataParallel ddp(synchronous, communicator);
    torch::optim::SGD local_sgd(local->parameters(), 0.1);
    torch::optim::SGD sgd(synchronous->parameters(), 0.1);
    ParameterAveraging averaging(local->parameters(), communicator);
    for (int step = 0; step < 5; ++step) {
      const Batch own = part(global_batch(step), communicator.rank().value());
      local_sgd.zero_grad();
      loss_of(*local, own).backward();
      local_sgd.step();
      averaging.after_step();
      sgd.zero_grad();
      loss_of(ddp, own).backward();
      sgd.step();
      expect_equal_parameters(*local, *synchronous);
    }
  });
}

TEST(ParameterAveraging, WhatHasNoMeanIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    const auto refused = [&](Parameters parameters, ParameterAveragingOptions options) {
      return message_of<InvalidArgument>(
          [&] { ParameterAveraging(std::move(parameters), communicator, options); });
    };
    expect_contains(refused({torch::ones({2})}, {.period = 0}), "must be 1 or more");
    expect_contains(refused({torch::ones({2}, torch::kBool)}, {}), "has no mean");
    expect_contains(refused({torch::ones({2}).to_sparse()}, {}), "not a dense tensor");
    expect_contains(refused({torch::ones({2}, torch::kMeta)}, {}), "that has memory");
  });
}

TEST(ParameterAveraging, WhatOneRankRefusesOrHasOtherwiseIsToldToAll) {
  run_ranks(3, [](Communicator& communicator) {
    const bool is_other = communicator.rank() == Rank(1);
    const auto type = is_other ? torch::kBool : torch::kFloat;
    const auto refused = [&] { ParameterAveraging({torch::ones({2}, type)}, communicator); };
    expect_contains(told_to_all(communicator, refused),
                    "parameter 0 is of a type that has no mean");
    const auto differ = [&] {
      ParameterAveraging({torch::ones({2})}, communicator, {.period = is_other ? 3 : 2});
    };
    expect_contains(message_of<Mismatch>(differ), "period 2 on ranks 0, 2; 3 on rank 1");
  });
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/torch_models.h"

// Many kinds of models with many settings each: gradients must be the mean of those that one
// process computes from the ranks' batches, and parameters must have the same bits on all ranks.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Identifies a backward pass of a rank.
struct Turn {
  int step = 0;
  int part = 0;
  int rank = 0;
  std::uint64_t seed() const {
    return 1000 + 100 * static_cast<std::uint64_t>(step) + 10 * static_cast<std::uint64_t>(part) +
           static_cast<std::uint64_t>(rank);
  }
  torch::Tensor input(at::IntArrayRef sizes = {4, kInputs}) const {
    return with_seed(seed(), [&] { return torch::randn(sizes); });
  }
  torch::Tensor words(std::int64_t count, at::IntArrayRef sizes) const {
    return with_seed(seed(), [&] { return torch::randint(0, count, sizes); });
  }
};

struct Setting {
  DistributedDataParallelOptions options = {};
  int parts = 1;  // Backward passes in a step, all but the last one inside no_sync().
  bool set_to_none = true;
};

std::vector<Setting> of_any_graph() {
  return {{.options = {.bucket_bytes = {1}, .find_unused_parameters = true}},
          {.options = {.bucket_bytes = {200}, .find_unused_parameters = true}, .parts = 3},
          {.options = {.find_unused_parameters = true}, .set_to_none = false}};
}

std::vector<Setting> of_full_graphs() {
  std::vector<Setting> settings = of_any_graph();
  settings.push_back({.options = small_buckets()});
  settings.push_back({.options = {.bucket_bytes = {1}, .rebuild_buckets = false}, .parts = 2});
  settings.push_back(
      {.options = {.bucket_bytes = {300}, .last_bucket_small = true}, .set_to_none = false});
  return settings;
}

std::vector<Setting> of_static_graphs() {
  std::vector<Setting> settings = of_full_graphs();
  settings.push_back({.options = {.bucket_bytes = {100}, .static_graph = true}, .parts = 2});
  return settings;
}

void expect_same_gradients(const torch::nn::Module& model, const torch::nn::Module& reference) {
  const auto parameters = model.named_parameters();
  for (const auto& item : reference.named_parameters()) {
    const auto& gradient = parameters[item.key()].grad();
    ASSERT_EQ(gradient.defined(), item.value().grad().defined()) << item.key();
    if (!gradient.defined()) continue;
    EXPECT_EQ(gradient.sizes(), item.value().sizes()) << item.key();
    // The tolerances allow for rounding errors of a few steps.
    EXPECT_TRUE(torch::allclose(gradient, item.value().grad(), 1e-4, 1e-5)) << item.key();
  }
}

// `loss(model, turn)` must call model.forward().
template <class Ddp, class Loss>
void backward_of_all_parts(Ddp& ddp, const Loss& loss, int parts, Turn turn) {
  for (; turn.part + 1 < parts; ++turn.part) {
    const auto guard = ddp.no_sync();
    loss(ddp, turn).backward();
  }
  loss(ddp, turn).backward();
}

template <class Make, class Loss>
void train(Communicator& communicator, const Make& make, const Loss& loss, const Setting& setting) {
  const int ranks = communicator.size();
  auto model = with_seed(1, make);
  auto reference = with_seed(1, make);
  DistributedDataParallel ddp(model, communicator, setting.options);
  const auto rule = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD optimizer(ddp.parameters(), rule);
  torch::optim::SGD alone(reference->parameters(), rule);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(setting.set_to_none);
    alone.zero_grad(setting.set_to_none);
    backward_of_all_parts(ddp, loss, setting.parts, {step, 0, communicator.rank().value()});
    for (int turn = 0; turn < setting.parts * ranks; ++turn) {
      (loss(*reference, Turn{step, turn / ranks, turn % ranks}) / ranks).backward();
    }
    expect_same_gradients(*model, *reference);
    optimizer.step();
    alone.step();
    EXPECT_NO_THROW(ddp.verify_replicas());
  }
}

template <class Make, class Loss>
void expect_like_one_process(const Make& make, const Loss& loss,
                             const std::vector<Setting>& settings, int ranks = kRanks) {
  for (std::size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE("setting " + std::to_string(i));
    run_ranks(ranks,
              [&](Communicator& communicator) { train(communicator, make, loss, settings[i]); });
  }
}

struct ConvolutionsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(norm(first(images)));
    x = x + second(x);
    return last(torch::max_pool2d(x, 2).flatten(1));
  }
  torch::nn::Conv2d first = register_module(
      "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Conv2d second = register_module(
      "second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).groups(2)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
};
TORCH_MODULE(Convolutions);

TEST(LikeOneProcess, ConvolutionsWithBatchNorm) {
  const auto loss = [](auto& model, const Turn& turn) {
    return torch::tanh(model.forward(turn.input({3, 2, 4, 4}))).sum();
  };
  expect_like_one_process([] { return Convolutions(); }, loss, of_static_graphs());
}

struct RecurrentImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& texts, const torch::Tensor& lengths) {
    const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
        texts, lengths, /*batch_first=*/true, /*enforce_sorted=*/false);
    return std::get<0>(lstm->forward_with_packed_input(packed)).data();
  }
  torch::nn::LSTM lstm = register_module(
      "lstm",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(kInputs, 3).num_layers(2).batch_first(true).bidirectional(true)));
};
TORCH_MODULE(Recurrent);

TEST(LikeOneProcess, RecurrentLayersOnSequencesOfDifferentLengths) {
  const auto loss = [](auto& model, const Turn& turn) {
    const auto lengths = torch::tensor({1 + turn.step, 4 - turn.rank});
    return model.forward(turn.input({2, 5, kInputs}), lengths).pow(2).mean();
  };
  expect_like_one_process([] { return Recurrent(); }, loss, of_static_graphs());
}

// One matrix both embeds words and predicts them; attention lies in between.
struct LanguageImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& text) {
    return torch::nn::functional::linear(attention(words(text)), words->weight);
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(11, 8));
  torch::nn::TransformerEncoderLayer attention = register_module(
      "attention",
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0)));
};
TORCH_MODULE(Language);

TEST(LikeOneProcess, AttentionAndOneMatrixAtBothEnds) {
  const auto loss = [](auto& model, const Turn& turn) {
    const auto text = turn.words(11, {4, 3});
    return torch::nn::functional::cross_entropy(model.forward(text).flatten(0, 1), text.flatten());
  };
  expect_like_one_process([] { return Language(); }, loss, of_static_graphs());
}

// Parameters of several types and of unusual shapes.
struct OddImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto turned = torch::abs(phases * x).to(torch::kDouble);
    return (exact * turned).sum() * scale + nothing(x).sum() + (row.t() * x).pow(2).sum();
  }
  torch::Tensor scale = register_parameter("scale", torch::tensor(0.5));
  torch::Tensor exact = register_parameter("exact", torch::rand({kInputs}, torch::kDouble));
  torch::Tensor phases =
      register_parameter("phases", torch::randn({kInputs}, torch::kComplexFloat));
  torch::nn::Linear nothing = register_module("nothing", torch::nn::Linear(kInputs, 0));
  torch::Tensor row = register_parameter("row", torch::randn({kInputs, 1}));
};
TORCH_MODULE(Odd);

TEST(LikeOneProcess, ParametersOfSeveralTypesAndWithoutElements) {
  const auto loss = [](auto& model, const Turn& turn) { return model.forward(turn.input()) / 20; };
  expect_like_one_process([] { return Odd(); }, loss, of_static_graphs());
}

// Tensors must be found in whatever forward() returns.
struct ResultsImpl : torch::nn::Module {
  using Results = std::map<std::string, std::tuple<int, std::optional<torch::Tensor>>>;
  Results forward(const std::vector<torch::Tensor>& inputs) {
    Results results;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      results["head" + std::to_string(i)] = {
          0, layers[i]->as<torch::nn::Linear>()->forward(inputs[i])};
    }
    results["none"] = {1, std::nullopt};
    return results;
  }
  torch::nn::ModuleList layers = register_module(
      "layers",
      torch::nn::ModuleList(torch::nn::Linear(kInputs, 2), torch::nn::Linear(kInputs, 1)));
};
TORCH_MODULE(Results);

TEST(LikeOneProcess, ForwardTakesAndReturnsContainers) {
  const auto loss = [](auto& model, const Turn& turn) {
    auto results = model.forward(std::vector<torch::Tensor>{turn.input(), turn.input() + 1});
    return std::get<1>(results["head0"])->pow(2).mean() + std::get<1>(results["head1"])->mean();
  };
  expect_like_one_process([] { return Results(); }, loss, of_static_graphs());
}

// On rank 0, no loss uses the output of the second head.
TEST(LikeOneProcess, AnOutputThatOnlySomeRanksUse) {
  const auto loss = [](auto& model, const Turn& turn) {
    auto results = model.forward(std::vector<torch::Tensor>{turn.input(), turn.input() + 1});
    const auto one = std::get<1>(results["head0"])->pow(2).mean();
    return turn.rank == 0 ? one : one + std::get<1>(results["head1"])->mean();
  };
  expect_like_one_process([] { return Results(); }, loss, of_any_graph(), 3);
}

TEST(LikeOneProcess, BranchesByStepAndByRank) {
  const auto by_step = [](auto& model, const Turn& turn) {
    return model.forward(turn.input(), turn.step % 2 == 1).pow(2).mean();
  };
  expect_like_one_process([] { return Branches(); }, by_step, of_any_graph());
  const auto by_both = [](auto& model, const Turn& turn) {
    return model.forward(turn.input(), (turn.step + turn.rank) % 3 == 0).pow(2).mean();
  };
  expect_like_one_process([] { return Branches(); }, by_both, of_any_graph(), 3);
}

// One layer is used repeatedly, and not equally often on all ranks.
struct LoopImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, int times) {
    for (int i = 0; i < times; ++i) x = torch::tanh(layer(x));
    return x;
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(Loop);

TEST(LikeOneProcess, ALayerThatIsUsedSeveralTimes) {
  const auto loss = [](auto& model, const Turn& turn) {
    return model.forward(turn.input(), 1 + (turn.step + turn.rank) % 3).pow(2).mean();
  };
  expect_like_one_process([] { return Loop(); }, loss, of_full_graphs());
}

// One rank has less to add up than the other, and sometimes nothing.
TEST(LikeOneProcess, BatchesOfDifferentSizes) {
  const auto loss = [](auto& model, const Turn& turn) {
    return model.forward(turn.input({turn.rank * turn.step, kInputs})).pow(2).sum() / 10;
  };
  expect_like_one_process([] { return torch::nn::Linear(kInputs, 2); }, loss, of_static_graphs(),
                          3);
}

struct Cube : torch::autograd::Function<Cube> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto x = context->get_saved_variables()[0];
    return {3 * x * x * gradients[0]};
  }
};

// The program's own hooks, on parameters and activations, run before the mean is taken. They are
// linear, because in the reference each gets only a share of the gradient.
TEST(LikeOneProcess, OwnFunctionsAndHooks) {
  const auto make = [] {
    Net model;
    model->shared->weight.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
    return model;
  };
  const auto loss = [](auto& model, const Turn& turn) {
    const auto output = model.forward(turn.input());
    output.register_hook([](const torch::Tensor& gradient) { return gradient * 3; });
    return Cube::apply(output).mean();
  };
  expect_like_one_process(make, loss, of_static_graphs());
}

TEST(LikeOneProcess, TwoLossesAndTwoBackwardPassesOfOneForward) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const Turn turn{0, 0, communicator.rank().value()};
    Results model = seeded<Results>(1);
    Results reference = seeded<Results>(1);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    auto results = ddp.forward(std::vector<torch::Tensor>{turn.input(), turn.input()});
    for (auto& [name, result] : results) {
      if (std::get<1>(result)) std::get<1>(result)->pow(2).mean().backward();
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const torch::Tensor x = Turn{0, 0, rank}.input();
      auto expected = reference->forward({x, x});
      (std::get<1>(expected["head0"])->pow(2).mean() / kRanks).backward();
      (std::get<1>(expected["head1"])->pow(2).mean() / kRanks).backward();
    }
    expect_same_gradients(*model, *reference);
  });
}

TEST(LikeOneProcess, AGraphThatIsKeptMayBeUsedAgain) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net(), reference = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto loss = loss_of(ddp, part(global_batch(0), communicator.rank().value()));
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
    (2 * loss_of(*reference, global_batch(0))).backward();
    expect_same_gradients(*model, *reference);
    EXPECT_EQ(ddp.last_step().step, 2u);
  });
}

// The generator's gradients flow through the critic, which is wrapped, too: both reduce in one
// pass.
TEST(LikeOneProcess, AGeneratorAndItsCritic) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto layer = [](int in, int out) {
      return with_seed(static_cast<std::uint64_t>(in), [&] { return torch::nn::Linear(in, out); });
    };
    auto generator = layer(3, kInputs), critic = layer(kInputs, 1);
    auto generator_alone = layer(3, kInputs), critic_alone = layer(kInputs, 1);
    DistributedDataParallel generator_ddp(generator, communicator, {.bucket_bytes = {1}});
    DistributedDataParallel critic_ddp(critic, communicator, {.bucket_bytes = {1}});
    const auto losses = [](auto& make, auto& judge, const Turn& turn, int of) {
      const auto fake = make.forward(turn.input({4, 3}));
      (torch::tanh(judge.forward(turn.input()) - judge.forward(fake.detach())).mean() / of)
          .backward();
      (torch::tanh(judge.forward(fake)).mean() / of).backward();
    };
    for (int step = 0; step < 3; ++step) {
      losses(generator_ddp, critic_ddp, {step, 0, communicator.rank().value()}, 1);
      for (int rank = 0; rank < kRanks; ++rank) {
        losses(*generator_alone, *critic_alone, {step, 0, rank}, kRanks);
      }
      expect_same_gradients(*generator, *generator_alone);
      expect_same_gradients(*critic, *critic_alone);
    }
  });
}

// Only rank 0 evaluates the model, outputs are thrown away, and forward() fails and is called
// again.
TEST(LikeOneProcess, WhatHappensBetweenSteps) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net model = net(), reference = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    for (int step = 0; step < 3; ++step) {
      if (rank == 0) {
        const torch::NoGradGuard no_grad;
        ddp.eval();
        EXPECT_FALSE(loss_of(ddp, global_batch(step)).requires_grad());
        ddp.train();
      }
      if (rank == 1) ddp.forward(global_batch(step).data);  // Without a backward pass.
      EXPECT_ANY_THROW(ddp.forward(torch::ones({1, kInputs + 1})));
      ddp.zero_grad(step == 1);
      reference->zero_grad();
      loss_of(ddp, part(global_batch(step), rank)).backward();
      loss_of(*reference, global_batch(step)).backward();
      expect_same_gradients(*model, *reference);
    }
    EXPECT_EQ(ddp.last_step().step, 3u);
  });
}

TEST(LikeOneProcess, AModelIsWrappedAgainAfterAFailure) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model = seeded<Branches>(1);
    const auto backward = [&](auto& ddp) {
      ddp.forward(torch::ones({1, kInputs}), rank == 0).sum().backward();
    };
    {
      DistributedDataParallel ddp(model, communicator);
      EXPECT_THROW(backward(ddp), InvalidArgument);
    }
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    ddp.zero_grad();
    backward(ddp);
    expect_close(model->a->bias.grad(), torch::ones({2}), "a.bias");
    expect_close(model->b->bias.grad(), torch::full({2}, 0.5), "b.bias");
  });
}

TEST(LikeOneProcess, GuardsOfNoSyncMayBeNestedAndMoved) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net(), reference = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto backward = [&](int step) {
      loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
    };
    std::optional<NoSync> outer = ddp.no_sync();
    {
      const auto inner = ddp.no_sync();
      backward(0);
    }
    backward(1);
    outer.reset();
    backward(2);
    for (int step = 0; step < 3; ++step) loss_of(*reference, global_batch(step)).backward();
    expect_same_gradients(*model, *reference);
  });
}

// Ranks run out of batches one after the other. The model has buffers and parts that only some
// ranks use, and a step has several backward passes. Ranks without data count as zeros.
TEST(LikeOneProcess, UnevenInputsWithUnusedPartsAndAccumulation) {
  constexpr int kThree = 3;
  run_ranks(kThree, [](Communicator& communicator, int rank) {
    Branches model = seeded<Branches>(1), reference = seeded<Branches>(1);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1), alone(reference->parameters(), 0.1);
    const auto loss = [](auto& of, const Turn& turn) {
      return of.forward(turn.input(), turn.rank == 1).pow(2).mean();
    };
    ddp.join([&] {
      for (int step = 0; step < 2 + rank; ++step) {
        optimizer.zero_grad();
        backward_of_all_parts(ddp, loss, 2, {step, 0, rank});
        optimizer.step();
      }
    });
    for (int step = 0; step < 1 + kThree; ++step) {
      alone.zero_grad();
      for (int turn = 0; turn < 2 * kThree; ++turn) {
        const Turn one{step, turn / kThree, turn % kThree};
        if (step < 2 + one.rank) (loss(*reference, one) / kThree).backward();
      }
      alone.step();
    }
    expect_equal_parameters(*model, *reference);
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
}

// When join() ends, gradients of a rank's last batch that were only accumulated in no_sync() are
// gone.
TEST(LikeOneProcess, UnevenAccumulationThatHasNotBeenReducedIsForgotten) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model = seeded<Branches>(1);
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto train = [&] { ddp.forward(torch::ones({2, kInputs}), true).sum().backward(); };
    const auto accumulate = [&] {
      const auto guard = ddp.no_sync();
      train();
    };
    ddp.join([&] {
      for (int batch = 0; batch < 3 + rank; ++batch) batch % 2 == 0 ? accumulate() : train();
    });
    for (torch::Tensor& parameter : model->b->parameters()) parameter.set_requires_grad(false);
    ddp.zero_grad();
    EXPECT_NO_THROW(train());
  });
}

TEST(LikeOneProcess, AccumulationInsideOfJoinIsReducedByTheStepBehindIt) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model = seeded<Branches>(1);
    DistributedDataParallel ddp(model, communicator);
    const auto train = [&] { ddp.forward(torch::ones({2, kInputs}), true).sum().backward(); };
    {
      const auto guard = ddp.no_sync();
      ddp.join([&] {
        for (int batch = 0; batch < 1 + rank; ++batch) train();
      });
    }
    train();
    expect_close(model->a->bias.grad(), torch::full({2}, 5.0F), "two rows, of 2 and 3 batches");
  });
}

}  // namespace
}  // namespace stretto

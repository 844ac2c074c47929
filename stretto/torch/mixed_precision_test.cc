// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/sync_batch_norm.h"
#include "tests/support/torch_models.h"

// Parameters, gradients and buffers whose types differ from those that the optimizer sees.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

DistributedDataParallelOptions in_bf16(std::optional<DType> reduce_dtype = {}) {
  return {.bucket_bytes = small_buckets().bucket_bytes,
          .mixed_precision = {.parameter_dtype = DType::bf16, .reduce_dtype = reduce_dtype}};
}

// The reference is one process whose parameters are bf16 and whose gradients are kept in f32.
TEST(MixedPrecision, GradientsAreThoseOfParametersInTheOtherType) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, in_bf16(DType::f32));
    for (int step = 0; step < 3; ++step) {
      const Batch batch = global_batch(step);
      std::map<std::string, torch::Tensor> expected;
      for (int r = 0; r < kRanks; ++r) {
        Net reference = net();
        reference->to(torch::kBFloat16);
        const Batch own = part(batch, r);
        torch::nll_loss(reference->forward(own.data.to(torch::kBFloat16)), own.target).backward();
        for (const auto& item : reference->named_parameters()) {
          if (!item.value().requires_grad()) continue;
          const auto gradient = item.value().grad().to(torch::kFloat) / kRanks;
          auto& sum = expected[item.key()];
          sum = sum.defined() ? sum + gradient : gradient;
        }
      }
      ddp.zero_grad();
      const auto output = ddp.forward(part(batch, rank).data);
      EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(model->first->weight.scalar_type(), torch::kBFloat16) << "until backward has ended";
      torch::nll_loss(output, part(batch, rank).target).backward();
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
        if (!item.value().requires_grad()) continue;
        EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat);
        expect_close(item.value().grad(), expected[item.key()], item.key());
      }
    }
    ddp.verify_replicas();
  });
}

TEST(MixedPrecision, ModelsTrainAndStayEqual) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::Linear reference = with_seed(3, [] { return torch::nn::Linear(kInputs, 1); });
    torch::nn::Linear model = with_seed(3, [] { return torch::nn::Linear(kInputs, 1); });
    DistributedDataParallel ddp(model, communicator,
                                {.mixed_precision = {.parameter_dtype = DType::bf16}});
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    torch::optim::Adam reference_optimizer(reference->parameters(), 0.01);
    for (int step = 0; step < 40; ++step) {
      const auto data = global_batch(step).data;
      reference_optimizer.zero_grad();
      (reference->forward(data) - data.sum(1, true)).pow(2).mean().backward();
      reference_optimizer.step();
      optimizer.zero_grad();
      const auto own = data.narrow(0, communicator.rank().value() * 4, 4);
      (ddp.forward(own).to(torch::kFloat) - own.sum(1, true)).pow(2).mean().backward();
      optimizer.step();
    }
    EXPECT_TRUE(torch::allclose(model->weight, reference->weight, 0.05, 0.1));
    EXPECT_FALSE(torch::equal(model->weight, reference->weight)) << "rounded on the way";
    EXPECT_FALSE(torch::equal(model->weight, model->weight.to(torch::kBFloat16).to(torch::kFloat)))
        << "the optimizer steps with all digits";
    ddp.verify_replicas();
  });
}

TEST(MixedPrecision, ParametersComeBackWhateverFollowsForward) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    torch::Tensor before = model->first->weight.detach().clone();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    const auto is_back = [&] { return torch::equal(model->first->weight.detach(), before); };
    const Batch batch = global_batch(0);
    {
      const torch::NoGradGuard no_grad;
      (void)ddp.forward(batch.data);
      EXPECT_TRUE(is_back()) << "no gradients";
    }
    EXPECT_ANY_THROW((void)ddp.forward(torch::ones({1, kInputs + 1})));
    EXPECT_TRUE(is_back()) << "forward has thrown";
    {
      auto guard = ddp.no_sync();
      loss_of(ddp, batch).backward();
      EXPECT_TRUE(is_back()) << "no_sync";
    }
    const torch::Tensor once = model->first->weight.grad().clone();
    EXPECT_EQ(once.scalar_type(), torch::kFloat);
    const auto one = loss_of(ddp, batch);
    (one + loss_of(ddp, batch)).backward();
    EXPECT_TRUE(is_back()) << "two forward passes";
    EXPECT_TRUE(torch::allclose(model->first->weight.grad(), once * 3, 0.03, 1e-3));
  });
}

// Between forward and backward, which may never come, the module holds low-precision copies.
TEST(MixedPrecision, WhatIsSavedAndComparedIsWhatTheOptimizerSteps) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net(), other = net();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    DistributedDataParallel undisturbed(other, communicator, in_bf16());
    const std::uint64_t hash = ddp.parameter_hash();
    const auto batch = part(global_batch(0), communicator.rank().value());
    const auto loss = loss_of(ddp, batch);
    EXPECT_EQ(ddp.parameter_hash(), hash);
    ddp.verify_replicas();
    EXPECT_EQ(model->first->weight.scalar_type(), torch::kBFloat16) << "until backward has ended";
    loss.backward();
    loss_of(undisturbed, batch).backward();
    for (const auto& item : ddp.trained_parameters()) {
      const auto& expected = other->named_parameters()[item.name].grad();
      EXPECT_TRUE(torch::equal(item.tensor.grad(), expected)) << item.name;
    }
    loss_of(ddp, batch);
    std::stringstream file;
    torch::save(ddp, file);
    Net copy = net(5);
    torch::load(copy, file);
    expect_same_bits(*copy, *other);
    loss_of(ddp, batch);
    file.seekg(0);
    torch::load(ddp, file);
    expect_same_bits(*model, *other);
  });
}

TEST(MixedPrecision, AnOptimizerThatStepsTheCopiesIsRefused) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    const Batch batch = global_batch(0);
    loss_of(ddp, batch).backward();
    const std::uint64_t before = ddp.parameter_hash();
    loss_of(ddp, batch);  // NoGradGuard is missing here.
    loss_of(ddp, batch);
    optimizer.step();
    const auto text = message_of<InvalidArgument>([&] { loss_of(ddp, batch); });
    expect_contains(text, "the change is lost. Call optimizer.step() before forward()");
    EXPECT_EQ(ddp.parameter_hash(), before);
    optimizer.zero_grad();
    loss_of(ddp, batch).backward();
    optimizer.step();
    EXPECT_NE(ddp.parameter_hash(), before);
    ddp.verify_replicas();
  });
}

TEST(MixedPrecision, WhatItDoesNotSupportIsSaid) {
  run_ranks(1, [](Communicator& communicator) {
    const auto refusal = [&](const MixedPrecision& precision, auto model) {
      return message_of<InvalidArgument>([&] {
        DistributedDataParallel ddp(model, communicator, {.mixed_precision = precision});
      });
    };
    expect_contains(refusal({.parameter_dtype = DType::i32}, net()),
                    "mixed_precision.parameter_dtype is i32; supported are f16, bf16, f32 and f64");
    expect_contains(refusal({.reduce_dtype = DType::f64}, net()),
                    "mixed_precision.reduce_dtype is f64; supported are f16, bf16 and f32");
    torch::nn::Sequential words(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)),
        torch::nn::Linear(2, 1));
    expect_contains(refusal({.parameter_dtype = DType::bf16}, words),
                    "does not work with sparse gradients: '0.weight' has them");
    torch::nn::Linear layer(2, 2);
    layer->register_buffer("mask", torch::ones({2}));
    layer->register_buffer("count", torch::zeros({2}, torch::kLong));
    const DistributedDataParallel ddp(layer, communicator,
                                      {.mixed_precision = {.buffer_dtype = DType::f64}});
    EXPECT_EQ(layer->named_buffers()["mask"].scalar_type(), torch::kDouble);
    EXPECT_EQ(layer->named_buffers()["count"].scalar_type(), torch::kLong);
  });
}

using State = std::optional<std::tuple<torch::Tensor, torch::Tensor>>;  // As of an LSTM.
using ByName = std::map<std::string, std::vector<torch::Tensor>>;

// Takes arguments of many types, and records the types of their tensors.
struct ArgumentsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, torch::Tensor wide, const torch::Tensor& index,
                        const torch::Tensor& mask, const std::optional<torch::Tensor>& perhaps,
                        const std::vector<torch::Tensor>& list, const State& state,
                        const ByName& by_name, const std::optional<torch::Tensor>& none = {},
                        const torch::Tensor& undefined = {}, const std::string& text = "as it is") {
    seen.clear();
    for (const auto& tensor : {x, wide, index, mask, *perhaps, list.at(0), list.at(1),
                               std::get<0>(*state), std::get<1>(*state), by_name.at("a").at(0)}) {
      seen.push_back(tensor.scalar_type());
    }
    EXPECT_FALSE(none.has_value());
    EXPECT_FALSE(undefined.defined());
    EXPECT_EQ(text, "as it is");
    return layer(x.to(layer->weight.scalar_type()));
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, 1));
  std::vector<torch::ScalarType> seen;
};
TORCH_MODULE(Arguments);

// As in PyTorch's DistributedDataParallel with mixed precision, all floating-point tensors in the
// arguments of forward() are converted, wherever they are, and no others.
void expect_arguments_seen(const MixedPrecision& precision, torch::ScalarType floats,
                           torch::ScalarType doubles) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    Arguments model;
    DistributedDataParallel ddp(model, communicator, {.mixed_precision = precision});
    const auto x = torch::ones({2, kInputs}).set_requires_grad(true);
    const auto wide = torch::ones({2}, torch::kDouble), index = torch::zeros({2}, torch::kLong);
    const std::vector<torch::Tensor> list = {wide, index};
    const ByName by_name = {{"a", {wide}}};
    const auto mask = torch::ones({2}, torch::kBool);
    ddp.forward(x, wide, index, mask, std::optional(wide), list, State({x, index}), by_name)
        .sum()
        .backward();
    EXPECT_EQ(model->seen, (std::vector{floats, doubles, torch::kLong, torch::kBool, doubles,
                                        doubles, torch::kLong, floats, torch::kLong, doubles}));
    EXPECT_EQ(list[0].scalar_type(), torch::kDouble) << "the caller's own stay as they are";
    EXPECT_EQ(by_name.at("a")[0].scalar_type(), torch::kDouble);
    EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
    const auto weight = model->layer->weight.detach();
    const auto used =
        precision.parameter_dtype ? weight.to(torch::kBFloat16).to(torch::kFloat) : weight;
    expect_close(x.grad(), used.expand({2, kInputs}), "through the conversion");
  });
}

TEST(MixedPrecision, ArgumentsOfForwardAreConvertedUnlessThatIsOff) {
  expect_arguments_seen({.parameter_dtype = DType::bf16}, torch::kBFloat16, torch::kBFloat16);
  expect_arguments_seen({.parameter_dtype = DType::bf16, .cast_forward_inputs = false},
                        torch::kFloat, torch::kDouble);
  expect_arguments_seen({}, torch::kFloat, torch::kDouble);
}

TEST(MixedPrecision, WithoutConversionArgumentsOfAnotherTypeAreTheModulesBusiness) {
  run_ranks(1, [](Communicator& communicator) {
    torch::nn::Linear model(kInputs, 1);
    DistributedDataParallel ddp(
        model, communicator,
        {.mixed_precision = {.parameter_dtype = DType::bf16, .cast_forward_inputs = false}});
    EXPECT_ANY_THROW((void)ddp.forward(torch::ones({1, kInputs})));
    EXPECT_NO_THROW(ddp.forward(torch::ones({1, kInputs}, torch::kBFloat16)).sum().backward());
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
  });
}

TEST(MixedPrecision, EvaluationInInferenceModeMayComeFirst) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      {
        const c10::InferenceMode inference;
        EXPECT_EQ(ddp.forward(global_batch(0).data).scalar_type(), torch::kBFloat16);
      }
      optimizer.zero_grad();
      loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
      optimizer.step();
    }
    ddp.verify_replicas();
  });
}

// A small convolutional net with a normalisation layer of type `Norm`.
template <class Norm>
struct NormalisedImpl : torch::nn::Module {
  explicit NormalisedImpl(Norm made) : norm(register_module("norm", made)) {}
  torch::Tensor forward(const torch::Tensor& images) {
    return last(torch::relu(norm(first(images))).flatten(2).mean(2));
  }
  torch::nn::Conv2d first = register_module(
      "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).padding(1).bias(false)));
  Norm norm;
  torch::nn::Linear last = register_module("last", torch::nn::Linear(6, 3));
};

// Trains on images whose brightest channel is their class; returns the mean loss of the last steps.
template <class Model>
double train_on_images(Model& model, const std::vector<torch::Tensor>& parameters, int rank) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  double last_losses = 0;
  for (int step = 0; step < 30; ++step) {
    const auto seed = static_cast<std::uint64_t>(10 * step + rank);
    const auto images = with_seed(seed, [] { return torch::randn({8, 2, 5, 5}); });
    const auto means = images.mean({2, 3});
    const auto target = (means.select(1, 0) > means.select(1, 1)).to(torch::kLong);
    optimizer.zero_grad();
    const auto output = model.forward(images).to(torch::kFloat);
    const auto loss = torch::nn::functional::cross_entropy(output, target);
    loss.backward();
    optimizer.step();
    if (step >= 20) last_losses += loss.template item<double>() / 10;
  }
  return last_losses;
}

// `make` must build the normalisation layer.
template <class Make>
void expect_trains_like_f32(DType dtype, const Make& make) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    using Norm = decltype(make(communicator));
    const auto build = [&] {
      const Norm norm = make(communicator);  // This may wait for the other rank.
      return with_seed(3, [&] { return std::make_shared<NormalisedImpl<Norm>>(norm); });
    };
    const auto model = build(), reference = build();
    DistributedDataParallel full(reference, communicator);
    const double expected = train_on_images(full, full.parameters(), rank);
    DistributedDataParallel ddp(
        model, communicator,
        {.mixed_precision = {.parameter_dtype = dtype, .buffer_dtype = dtype}});
    std::set<torch::ScalarType> seen;  // The types while the parameters are in `dtype`.
    model->first->weight.register_hook([&](const torch::Tensor&) {
      for (const auto& item : model->named_parameters()) {
        if (item.key().starts_with("norm")) seen.insert(item.value().scalar_type());
      }
      EXPECT_NE(model->last->weight.scalar_type(), torch::kFloat);
    });
    const double loss = train_on_images(ddp, ddp.parameters(), rank);
    EXPECT_EQ(seen, std::set{torch::kFloat});
    EXPECT_EQ(model->named_buffers()["norm.running_var"].scalar_type(), torch::kFloat);
    EXPECT_LT(loss, 0.6) << "it learns";
    EXPECT_NEAR(loss, expected, 0.03);
    for (const auto& item : reference->named_parameters()) {
      const auto& own = model->named_parameters()[item.key()];
      EXPECT_TRUE(torch::allclose(own, item.value(), 0.05, 0.05))
          << item.key() << own << item.value();
      EXPECT_FALSE(torch::equal(own, item.value())) << "rounded on the way";
    }
    for (const auto& item : reference->named_buffers()) {
      const auto& own = model->named_buffers()[item.key()];
      EXPECT_TRUE(torch::allclose(own, item.value(), 0.05, 0.02)) << item.key();
    }
    ddp.verify_replicas();
  });
}

TEST(MixedPrecision, BatchNormKeepsAllDigits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name(dtype));
    expect_trains_like_f32(dtype, [](Communicator&) { return torch::nn::BatchNorm2d(6); });
    expect_trains_like_f32(
        dtype, [](Communicator& communicator) { return SyncBatchNorm(communicator, 6); });
  }
}

// libtorch's batch norm takes f32 parameters only with inputs of f16 and bf16.
TEST(MixedPrecision, BatchNormGoesAlongWhereTypesCannotBeMixed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    for (const auto& [own, other] :
         {std::pair{torch::kFloat, DType::f64}, std::pair{torch::kDouble, DType::f32},
          std::pair{torch::kDouble, DType::bf16}}) {
      torch::nn::Sequential model(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2));
      model->to(own);
      DistributedDataParallel ddp(
          model, communicator,
          {.mixed_precision = {.parameter_dtype = other, .buffer_dtype = other}});
      EXPECT_NO_THROW(ddp.forward(torch::ones({2, 1, 5, 5}, own)).sum().backward()) << name(other);
      EXPECT_TRUE(model->parameters().back().grad().defined());
    }
  });
}

TEST(MixedPrecision, ParametersComeBackWhereTrainingEndsBehindForward) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    {
      DistributedDataParallel ddp(model, communicator, in_bf16());
      (void)loss_of(ddp, global_batch(0));
      EXPECT_EQ(model->first->weight.scalar_type(), torch::kBFloat16);
    }
    ASSERT_EQ(model->first->weight.scalar_type(), torch::kFloat);
    expect_same_bits(*model, *net());
  });
}

TEST(MixedPrecision, AParameterUnfrozenWhileTheOthersAreCopiesIsRefusedOnce) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    (void)loss_of(ddp, global_batch(1));
    model->scale.set_requires_grad(true);
    const auto step = [&] { loss_of(ddp, part(global_batch(1), rank)).backward(); };
    expect_contains(message_of<InvalidArgument>(step), "'scale' was frozen or unfrozen behind");
    step();
    torch::Tensor mean = model->scale.grad().clone();
    communicator.all_reduce(mean, {.op = ReduceOp::mean}).wait();
    EXPECT_TRUE(torch::equal(mean, model->scale.grad()));
  });
}

TEST(MixedPrecision, AParameterUnfrozenBetweenStepsIsReducedAfterTwoForwardPasses) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net model = net(), other = net();
    DistributedDataParallel ddp(model, communicator, in_bf16());
    model->scale.set_requires_grad(true);
    other->scale.set_requires_grad(true);
    DistributedDataParallel trained_before(other, communicator, in_bf16());
    for (auto* const each : {&ddp, &trained_before}) {
      const auto one = loss_of(*each, part(global_batch(0), rank));
      (one + loss_of(*each, part(global_batch(1), rank))).backward();
    }
    expect_close(model->scale.grad(), other->scale.grad(), "scale");
  });
}

}  // namespace
}  // namespace stretto

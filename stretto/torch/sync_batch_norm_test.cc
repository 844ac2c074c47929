// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sync_batch_norm.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/torch/tensors.h"
#include "tests/support/own_timeout.h"
#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Of a batch of 4 images, rank 0 has 1 and rank 1 has 3.
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
      auto weight = model->weight.grad().clone();  // Each rank has a part of the sum.
      communicator.all_reduce(weight).wait();
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

TEST(SyncBatchNorm, ABatchThatIsEmptyOnAllRanksChangesNoRunningStatistics) {
  run_ranks(kRanks, [](Communicator& communicator) {
    for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
      const auto options = torch::nn::BatchNormOptions(3).momentum(momentum);
      torch::nn::BatchNorm2d reference(options);
      SyncBatchNorm model(communicator, 3, options);
      for (const std::int64_t images : {4, 0, 4}) {
        const auto whole = torch::arange(3 * images, torch::kFloat).view({images, 3, 1, 1});
        const auto expected = reference->forward(whole);
        const auto first = images / kRanks * communicator.rank().value();
        const auto output = model->forward(whole.narrow(0, first, images / kRanks));
        expect_close(output, expected.narrow(0, first, images / kRanks), "output");
        expect_close(model->running_mean, reference->running_mean, "running mean");
        expect_close(model->running_var, reference->running_var, "running variance");
        EXPECT_TRUE(model->num_batches_tracked.equal(reference->num_batches_tracked));
      }
    }
  });
}

// Only rank 0 uses layer `last`. Its gradient is ready before that of the normalisation on rank 0,
// and its bucket leaves after it on rank 1.
template <class Norm>
struct NormalisedImpl : torch::nn::Module {
  explicit NormalisedImpl(Norm made) : norm(register_module("norm", made)) {}
  torch::Tensor normalised(const torch::Tensor& x) { return torch::tanh(norm(first(x))); }
  torch::Tensor behind(const torch::Tensor& x, bool all) { return all ? last(x) : x; }
  torch::Tensor forward(const torch::Tensor& x, bool all) { return behind(normalised(x), all); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, kInputs));
  Norm norm;
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kInputs, kInputs));
};

torch::Tensor loss_of_output(const torch::Tensor& output) { return (output - 0.5).pow(3).mean(); }

// Returns a hook that waits for other ranks while backward goes on.
std::shared_ptr<CommunicationHook> waiting_hook() {
  return std::make_shared<CompressedReduction>(CompressionOptions{
      .codec = top_k({.density = 1}), .min_elements = 1, .exchange = CompressedExchange::divide});
}

// Compares with one process that normalises the parts of both ranks as one batch.
void expect_training_like_one_process(bool hook_waits) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    const auto build = [](auto norm) {
      return with_seed(
          9, [&] { return std::make_shared<NormalisedImpl<decltype(norm)>>(std::move(norm)); });
    };
    const auto reference = build(torch::nn::BatchNorm1d(kInputs));
    const auto model = build(SyncBatchNorm(communicator, kInputs));
    DistributedDataParallelOptions options{.bucket_bytes = {1}, .find_unused_parameters = true};
    if (hook_waits) options.communication_hook = waiting_hook();
    DistributedDataParallel ddp(model, communicator, options);
    torch::optim::SGD own(ddp.parameters(), 0.1), alone(reference->parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      const bool accumulates = step % 3 == 0;
      const auto data = global_batch(step).data;
      const auto hidden = reference->normalised(data);
      const auto loss_of_rank = [&](int of) {
        return loss_of_output(reference->behind(hidden.narrow(0, 4 * of, 4), of == 0)) / kRanks;
      };
      (loss_of_rank(0) + loss_of_rank(1)).backward();
      const auto backward = [&] {
        loss_of_output(ddp.forward(data.narrow(0, 4 * rank, 4), rank == 0)).backward();
      };
      if (accumulates) {
        const auto guard = ddp.no_sync();
        backward();
        continue;
      }
      backward();
      expect_gradients_of(*reference, ddp);
      own.step();
      alone.step();
      own.zero_grad();
      alone.zero_grad();
    }
    expect_equal_parameters(*model, *reference);
    expect_close(model->norm->running_var, reference->norm->running_var, "running variance");
    ddp.verify_replicas();
  });
}

TEST(SyncBatchNorm, TrainsLikeOneProcessWithBranchesAndAccumulation) {
  expect_training_like_one_process(false);
}

// The hook waits for the other rank's bucket, while that rank waits in the normalisation.
TEST(SyncBatchNorm, HooksThatWaitBeginBehindIt) { expect_training_like_one_process(true); }

// The tensor that rank 0 keeps occupies the gradient's place. So its bucket waits for the end of
// the pass, and the end of the pass waits for the other rank.
TEST(SyncBatchNorm, HooksThatWaitBeginBehindItWhereARankKeepsATensor) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    SyncBatchNorm norm(communicator, kInputs);
    torch::nn::Sequential model = with_seed(9, [&] {
      return torch::nn::Sequential(torch::nn::Linear(kInputs, kInputs), norm,
                                   torch::nn::Linear(kInputs, kInputs),
                                   torch::nn::Linear(kInputs, kInputs));
    });
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {1},
                                 .communication_hook = waiting_hook(),
                                 .timeout = std::chrono::seconds(20)});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    int step = 0;
    std::vector<torch::Tensor> kept;
    model[3]->as<torch::nn::Linear>()->weight.register_hook([&](const torch::Tensor& gradient) {
      if (rank == 0 && step > 2) kept.push_back(gradient);
      return gradient;
    });
    for (; step < 6; ++step) {
      ddp.zero_grad();
      loss_of_output(ddp.forward(part(global_batch(step), rank).data)).backward();
      optimizer.step();
    }
    ddp.verify_replicas();
    EXPECT_EQ(kept.size(), rank == 0 ? 3u : 0u);
  });
}

// On rank 0 all gradients have come when the inner pass ends; on rank 1 those of `branch` have not.
struct CheckpointedHeadImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool all) {
    const auto y = Checkpoint::apply(x, &inner);
    return all ? branch(y) : y;
  }
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear branch = register_module("branch", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(CheckpointedHead);

// Rank 0 must wait neither in a bucket of the head nor at the end of the inner pass, while rank 1
// waits for it in the backbone.
TEST(SyncBatchNorm, ItMayBelongToAnotherModelOfThePass) {
  for (const bool compresses : {true, false}) {
    run_ranks(kRanks, [&](Communicator& communicator, int rank) {
      const auto group = communicator.split({.color = 0});
      SyncBatchNorm norm(communicator, kInputs);
      torch::nn::Sequential backbone(torch::nn::Linear(kInputs, kInputs), norm);
      CheckpointedHead head;
      DistributedDataParallelOptions options{
          .bucket_bytes = {1}, .find_unused_parameters = true, .timeout = std::chrono::seconds(20)};
      if (compresses) options.communication_hook = waiting_hook();
      DistributedDataParallel backbone_ddp(backbone, communicator,
                                           {.timeout = std::chrono::seconds(20)});
      DistributedDataParallel head_ddp(head, *group, options);
      for (int step = 0; step < 3; ++step) {
        const auto hidden = backbone_ddp.forward(part(global_batch(step), rank).data);
        loss_of_output(head_ddp.forward(hidden, rank == 0)).backward();
      }
      backbone_ddp.verify_replicas();
      head_ddp.verify_replicas();
      EXPECT_EQ(head_ddp.last_step().step, 3u);
    });
  }
}

// Uses one rank: ranks in tests are threads of a process, which count each other's models and
// layers, too.
TEST(SyncBatchNorm, HooksThatWaitBeginInBackwardWhereNothingElseWaits) {
  run_ranks(1, [](Communicator& communicator) {
    const DistributedDataParallelOptions options{.bucket_bytes = {1}, .codec = top_k()};
    DistributedDataParallel ddp(net(), communicator, options);
    const auto begins_in_backward = [&] {
      loss_of(ddp, global_batch(0)).backward();
      return ddp.last_step().launch_seconds[0] < ddp.last_step().backward_seconds;
    };
    EXPECT_TRUE(begins_in_backward());
    {
      const SyncBatchNorm norm(communicator, 2);
      EXPECT_FALSE(begins_in_backward());
    }
    EXPECT_TRUE(begins_in_backward());
    {
      const DistributedDataParallel plain(net(), communicator);
      EXPECT_TRUE(begins_in_backward());
    }
    const DistributedDataParallel other(net(), communicator, options);
    EXPECT_FALSE(begins_in_backward());
  });
}

// The end of a step also waits for other ranks.
TEST(SyncBatchNorm, NoStepEndsInAnInnerPassWhereSomethingWaits) {
  run_ranks(1, [](Communicator& communicator) {
    CheckpointedHead head;
    for (auto& parameter : head->branch->parameters()) parameter.set_requires_grad(false);
    DistributedDataParallel ddp(head, communicator);
    const auto ends_in_inner_pass = [&] {
      const std::uint64_t before = ddp.last_step().step;
      std::uint64_t behind_it = 0;
      const auto input = torch::ones({1, kInputs}).set_requires_grad(true) * 2;
      input.register_hook([&](const torch::Tensor&) { behind_it = ddp.last_step().step; });
      ddp.forward(input, false).sum().backward();
      EXPECT_EQ(ddp.last_step().step, before + 1);
      return behind_it > before;
    };
    EXPECT_TRUE(ends_in_inner_pass());
    const SyncBatchNorm norm(communicator, 2);
    EXPECT_FALSE(ends_in_inner_pass());
  });
}

TEST(SyncBatchNorm, LayersMayShareACommunicator) {
  run_ranks(kRanks, [](Communicator& job) {
    const std::shared_ptr<Communicator> group = job.new_group({0, 1});
    const float rank = static_cast<float>(job.rank().value());
    torch::Tensor output;
    {
      torch::nn::Sequential model(SyncBatchNorm(group, 2), torch::nn::Linear(2, 2),
                                  SyncBatchNorm(group, 2));
      output = model->forward(torch::tensor({{rank, 1.0f}, {3.0f, -rank}}));
    }
    output.pow(2).sum().backward();  // A graph may outlive its layers.
    auto sum = output.detach().sum(0);
    job.all_reduce(sum).wait();
    EXPECT_TRUE(torch::allclose(sum, torch::zeros({2}), 0, 1e-5)) << sum;
  });
}

TEST(SyncBatchNorm, TheTimeoutOfDistributedDataParallelHoldsForIt) {
  OwnTimeout timeout;
  run_ranks(kRanks, [&](Communicator& communicator) {
    SyncBatchNorm model(communicator, 2);
    DistributedDataParallel ddp(model, communicator,
                                {.broadcast_buffers = false, .timeout = OwnTimeout::kTimeout});
    timeout.expect_of(communicator, [&] { ddp.forward(torch::ones({2, 2})); });
  });
}

// Rank 0 ends a pass by an exception, while rank 1 waits for it in backward.
template <class Model>
void expect_told(Model& ddp, bool throws) {
  const auto output = ddp.forward(torch::ones({2, 2}).set_requires_grad(true));
  if (throws) {
    output.register_hook(
        [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("out of luck"); });
  }
  const auto pass = [&] { output.sum().backward(); };
  if (throws) {
    EXPECT_THROW(pass(), std::runtime_error);
  } else {
    expect_contains(message_of<Aborted>(pass), "rank 0 aborted: an exception ended its ");
  }
}

TEST(SyncBatchNorm, AnExceptionInBackwardIsToldToThoseWhoWaitInIt) {
  run_ranks(kRanks, [](Communicator& communicator) {
    SyncBatchNorm model(communicator, 2);
    DistributedDataParallel ddp(model, communicator);
    expect_told(ddp, communicator.rank() == Rank(0));
  });
}

// This also holds for passes that reduce no gradients.
TEST(SyncBatchNorm, AnExceptionInsideNoSyncOrWithAllFrozenIsTold) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool throws = communicator.rank() == Rank(0);
    SyncBatchNorm model(communicator, 2);
    DistributedDataParallel ddp(model, communicator);
    {
      const auto guard = ddp.no_sync();
      expect_told(ddp, throws);
    }
    model->set_communicator(communicator);
    for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
    ddp.forward(torch::ones({2, 2}).set_requires_grad(true)).sum().backward();
    expect_told(ddp, throws);
  });
}

// A module whose clone() makes its layers anew, and copies their content.
struct CloneableNormImpl : torch::nn::Cloneable<CloneableNormImpl> {
  explicit CloneableNormImpl(std::shared_ptr<Communicator> own) : group(std::move(own)) { reset(); }
  void reset() override { norm = register_module("norm", SyncBatchNorm(group, 2)); }
  std::shared_ptr<Communicator> group;
  SyncBatchNorm norm{nullptr};
};

TEST(SyncBatchNorm, ACloneHasItsValues) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> group = communicator.split({.color = 0});
    const auto rank = static_cast<float>(communicator.rank().value());
    const auto x = torch::tensor({{rank, 1.0f}, {3.0f, -rank}});
    CloneableNormImpl model(group);
    torch::nn::Sequential sequence(model.norm);
    model.norm->forward(x);
    const torch::NoGradGuard no_grad;
    model.norm->weight.fill_(5);
    const auto clone = std::dynamic_pointer_cast<CloneableNormImpl>(model.clone());
    const auto of_sequence =
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(sequence->clone());
    SyncBatchNormImpl& second = of_sequence->at<SyncBatchNormImpl>(0);
    for (SyncBatchNormImpl* const copy : {clone->norm.get(), &second}) {
      EXPECT_TRUE(copy->weight.equal(model.norm->weight));
      EXPECT_TRUE(copy->running_mean.equal(model.norm->running_mean));
      EXPECT_TRUE(copy->num_batches_tracked.equal(model.norm->num_batches_tracked));
      EXPECT_FALSE(copy->weight.is_same(model.norm->weight));
    }
    EXPECT_TRUE(second.forward(x).equal(model.norm->forward(x)));
    second.reset_parameters();
    EXPECT_TRUE(second.weight.equal(torch::ones({2})));
    EXPECT_TRUE(second.running_var.equal(torch::ones({2})));
    EXPECT_EQ(second.num_batches_tracked.item<std::int64_t>(), 0);
    EXPECT_EQ(second.options.num_features(), 2);
  });
}

TEST(SyncBatchNorm, GoesOnWithoutALostRank) {
  run_ranks(3, [](Communicator& job) {
    std::unique_ptr<Communicator> group = job.new_group({0, 1, 2});
    SyncBatchNorm model(*group, 2);
    if (job.rank() == Rank(2)) return;
    const float rank = static_cast<float>(job.rank().value());
    const auto x = torch::tensor({{rank, 1.0f}, {3.0f, -rank}});
    EXPECT_THROW(model->forward(x), PeerLost);
    group = group->shrink();
    model->set_communicator(*group);
    DistributedDataParallel ddp(model, *group);
    const auto output = ddp.forward(x);
    output.pow(2).sum().backward();
    auto sum = output.detach().sum(0);
    group->all_reduce(sum).wait();
    EXPECT_TRUE(torch::allclose(sum, torch::zeros({2}), 0, 1e-5)) << sum;
    EXPECT_THROW(model->set_communicator(nullptr), InvalidArgument);
  });
}

// A gradient penalty needs second derivatives, of which a rank knows only its own part.
TEST(SyncBatchNorm, RefusesSecondDerivatives) {
  run_ranks(kRanks, [](Communicator& communicator) {
    SyncBatchNorm layer(communicator, 2);
    const auto x = torch::arange(8.0f).view({4, 2}).set_requires_grad(true);
    const auto output = layer->forward(x).pow(3).sum();
    const auto gradient_of = [&](bool differentiable) {
      return torch::autograd::grad({output}, {x}, {}, /*retain_graph=*/true, differentiable);
    };
    expect_contains(message_of<InvalidArgument>([&] { gradient_of(true); }),
                    "SyncBatchNorm has no second derivatives");
    EXPECT_NO_THROW(gradient_of(false));
  });
}

TEST(SyncBatchNorm, RefusesAnotherNumberOfChannels) {
  run_ranks(1, [](Communicator& communicator) {
    SyncBatchNorm model(communicator, 3);
    EXPECT_THROW(model->forward(torch::ones({2, 4})), InvalidArgument);
  });
}

// If the layer tracks no statistics, it uses the moments of the rank's own batch.
TEST(SyncBatchNorm, IsLocalInEvaluation) {
  run_ranks(kRanks, [](Communicator& communicator) {
    for (const bool track : {true, false}) {
      const auto options = torch::nn::BatchNormOptions(3).track_running_stats(track);
      SyncBatchNorm model(communicator, 3, options);
      if (communicator.rank() == Rank(0)) continue;
      torch::nn::BatchNorm1d reference(options);
      model->eval();
      reference->eval();
      const torch::Tensor input = torch::linspace(-1, 2, 12).reshape({4, 3});
      expect_close(model->forward(input), reference->forward(input), "output");
    }
  });
}

}  // namespace
}  // namespace stretto

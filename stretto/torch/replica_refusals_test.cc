// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <span>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/torch_models.h"

// Changes of a wrapped model that one rank cannot follow: all ranks are told which rank it is, and
// why.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

struct TableAndLayerImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    return layer(table(words).to(layer->weight.scalar_type())).sum();
  }
  torch::nn::Embedding table = register_module(
      "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
};
TORCH_MODULE(TableAndLayer);

TEST(ReplicaRefusals, UnfrozenSparseParametersAreCheckedLikeThoseTrainedFromTheBeginning) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool changes = communicator.rank() == Rank(1);
    const auto refusal = [&](const MixedPrecision& precision, torch::ScalarType dtype) {
      TableAndLayer model;
      torch::Tensor weight = model->table->weight;
      weight.set_requires_grad(false);
      DistributedDataParallel ddp(model, communicator, {.mixed_precision = precision});
      const auto step = [&] { ddp.forward(torch::zeros({1}, torch::kLong)).backward(); };
      const torch::Tensor before = weight.detach().clone();
      if (changes) weight.set_data(weight.to(dtype, /*non_blocking=*/false, /*copy=*/true));
      if (changes) weight.set_requires_grad(true);
      const std::string text = message_of<InvalidArgument>(step);
      if (!changes) expect_contains(text, "rank 1 cannot train its model: ");
      if (changes) weight.set_requires_grad(false);
      if (changes) weight.set_data(before);
      EXPECT_NO_THROW(step()) << "when it has taken that back";
      return text;
    };
    expect_contains(refusal({.parameter_dtype = DType::bf16}, torch::kFloat),
                    "does not work with sparse gradients: 'table.weight' has them");
    expect_contains(refusal({}, torch::kHalf),
                    "parameter 'table.weight' has sparse gradients of type Half");
  });
}

TEST(ReplicaRefusals, AParameterThatIsComputedOnOneRankIsNamedOnAll) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool changes = communicator.rank() == Rank(1);
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto step = [&] { loss_of(ddp, global_batch(0)).backward(); };
    if (changes) model->scale.mul_(model->last->bias.sum());
    expect_contains(message_of<InvalidArgument>(step),
                    changes ? "parameter 'scale' is computed from others; it must be a leaf"
                            : "rank 1 cannot train its model: parameter 'scale' is computed");
    if (changes) model->scale.detach_();
    if (changes) model->scale.data().fill_(0.5);
    EXPECT_NO_THROW(step());
  });
}

TEST(ReplicaRefusals, ASparseParameterThatIsFrozenNowAndThenCostsNoReducer) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    TableAndLayer model = seeded<TableAndLayer>(1);
    DistributedDataParallel ddp(model, communicator);
    const void* place = nullptr;
    for (int step = 0; step < 8; ++step) {
      const bool frozen = step % 2 == 1;
      model->table->weight.set_requires_grad(!frozen);
      ddp.zero_grad();
      ddp.forward(torch::full({1}, rank, torch::kLong)).backward();
      const void* const now = model->layer->weight.grad().const_data_ptr();
      if (step > 2) {
        EXPECT_EQ(now, place) << "another reducer has been built";
      }
      place = now;
      const torch::Tensor gradient = model->table->weight.grad();
      EXPECT_EQ(gradient.defined(), !frozen);
      if (frozen) continue;
      torch::Tensor expected = torch::zeros({5, 2});
      expected.narrow(0, 0, kRanks).copy_(model->layer->weight.detach().expand({kRanks, 2}) / 2);
      expect_close(gradient.to_dense(), expected, "table");
    }
    model->table->weight.set_requires_grad(rank == 0);
    expect_contains(
        message_of<Mismatch>([&] { ddp.forward(torch::zeros({1}, torch::kLong)).backward(); }),
        "parameter 'table.weight' has requires_grad true on rank 0; false on rank 1");
  });
}

TEST(ReplicaRefusals, AModuleThatIsReplacedOrAddedIsNamedOnAllRanks) {
  for (const bool replaces : {true, false}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      const bool changes = communicator.rank() == Rank(1);
      Net model = net();
      DistributedDataParallelOptions options = small_buckets();
      options.find_unused_parameters = true;  // Otherwise the old layer would be known as unused.
      DistributedDataParallel ddp(model, communicator, options);
      torch::nn::Linear adapter(3, 3);
      const auto step = [&] {
        auto output = ddp.forward(global_batch(0).data);
        if (changes && !replaces && model->named_children().contains("adapter")) {
          output = adapter(output);
        }
        output.sum().backward();
      };
      for (int i = 0; i < 8; ++i) EXPECT_NO_THROW(step());
      if (changes && replaces) {
        model->last = model->replace_module("last", torch::nn::Linear(8, 3));
      } else if (changes) {
        model->register_module("adapter", adapter);
      }
      std::string text;
      int steps = 0;
      for (; text.empty() && steps < 64; ++steps) text = message_of<InvalidArgument>(step);
      if (replaces) {
        EXPECT_EQ(steps, 1);
      }
      const std::string name = replaces ? "'last.weight'" : "'adapter.weight'";
      expect_contains(text, (changes ? "" : "rank 1 cannot train its model: ") +
                                ("parameter " + name) +
                                " is new: a module was added or replaced after");
      EXPECT_EQ(message_of<InvalidArgument>(step), text) << "until the model is wrapped again";
      EXPECT_NO_THROW(communicator.barrier().wait());
    });
  }
}

// A hook that rank 1 cannot attach to other gradients.
class AttachedOnce : public PlainReduction {
 public:
  void attach(Communicator& communicator, std::span<const GradientDescription>) override {
    TORCH_CHECK(++times_ == 1 || communicator.rank() == Rank(0), "no room");
    communicator.barrier().wait();
  }

 private:
  int times_ = 0;
};

TEST(ReplicaRefusals, WhereAHookCannotBeAttachedAnewAllRanksAreToldAndNothingIsMixed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool refuses = communicator.rank() == Rank(1);
    Net model = net();
    DistributedDataParallelOptions options = small_buckets();
    options.communication_hook = std::make_shared<AttachedOnce>();
    DistributedDataParallel ddp(model, communicator, options);
    const auto step = [&] { loss_of(ddp, global_batch(0)).backward(); };
    EXPECT_NO_THROW(step());
    model->scale.set_requires_grad(true);
    if (refuses) {
      expect_contains(message_of<c10::Error>(step), "no room");
    } else {
      expect_contains(message_of<Aborted>(step),
                      "rank 1 could not begin to reduce other gradients");
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto text = message_of<Aborted>(step);
      expect_contains(text, "its model cannot be trained any more: no room");
      EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
    }
    EXPECT_EQ(ddp.trained_parameters().size(), 6u);
  });
}

TEST(ReplicaRefusals, AParameterOfAnotherReplicaIsNotTakenOver) {
  run_ranks(1, [](Communicator& communicator) {
    torch::nn::Linear model(kInputs, 2);
    model->bias.set_requires_grad(false);
    DistributedDataParallel first(model, communicator);
    torch::nn::Linear other(kInputs, 2);
    other->weight = other->register_parameter("own", torch::ones({2, kInputs}));
    model->bias.set_requires_grad(true);
    other->bias = other->register_parameter("shared", model->bias);
    DistributedDataParallel second(
        other, communicator,
        {.find_unused_parameters = true, .parameters_to_ignore = {"weight", "bias"}});
    expect_contains(message_of<InvalidArgument>([&] {
                      first.forward(torch::ones({1, kInputs}));
                    }),
                    "parameter 'bias' already belongs to a DistributedDataParallel");
  });
}

}  // namespace
}  // namespace stretto

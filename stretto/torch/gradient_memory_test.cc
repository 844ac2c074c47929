// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/gradient_memory.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/distributed_data_parallel.h"
#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

constexpr int kWidth = 64;  // The gradient of a square matrix of it is large enough for a bucket.

struct SquaresImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::tanh(b->forward(torch::tanh(a->forward(x))));
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Squares);

Squares squares() { return seeded<Squares>(8); }

struct ThreeSquaresImpl : SquaresImpl {
  torch::Tensor forward(const torch::Tensor& x) { return c->forward(SquaresImpl::forward(x)); }
  torch::nn::Linear c = register_module("c", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(ThreeSquares);

// Batches have as many rows as columns, so that gradients of activations are as large as those of
// weights.
torch::Tensor batch_of(int step, int rank) {
  return with_seed(static_cast<std::uint64_t>(100 + kRanks * step + rank), [] {
    return torch::randn({kWidth, kWidth});
  });
}

// Takes a step; calls `begins`, if it is set, when the backward pass begins.
template <class Module>
void take_step(DistributedDataParallel<Module>& ddp, const torch::Tensor& batch,
               const std::function<void()>& begins = {}) {
  ddp.zero_grad();
  const torch::Tensor output = ddp.forward(batch);
  if (begins) output.register_hook([&](const torch::Tensor&) { begins(); });
  output.pow(2).mean().backward();
}

// Makes `more` tensors that are as large as a gradient, each filled with its index in `kept`.
void make_more(int more, std::vector<torch::Tensor>& kept) {
  for (int i = 0; i < more; ++i) {
    kept.push_back(torch::full({kWidth, kWidth}, static_cast<float>(kept.size())));
  }
}

// Trains Squares on this rank, and compares its gradients with a reference that sees the batches of
// all ranks.
class Trainee {
 public:
  Trainee(Communicator& communicator, bool allocate_in_buckets)
      : rank_(communicator.rank().value()) {
    ddp_ = std::make_unique<DistributedDataParallel<SquaresImpl>>(
        model_.ptr(), communicator,
        DistributedDataParallelOptions{.allocate_in_buckets = allocate_in_buckets});
  }

  // Makes `more` tensors during the pass, too. Returns whether backward has written the weights'
  // gradients directly where they are reduced.
  bool step(int more, std::vector<torch::Tensor>& kept) {
    const torch::Tensor weights[] = {model_->a->weight, model_->b->weight};
    const void* made[2] = {};
    unsigned hooks[2] = {};
    for (int i = 0; i < 2; ++i) {
      hooks[i] = weights[i].register_hook(
          [&, i](const torch::Tensor& gradient) { made[i] = gradient.const_data_ptr(); });
    }
    take_step(*ddp_, batch_of(step_, rank_), [&] { make_more(more, kept); });
    bool in_place = true;
    for (int i = 0; i < 2; ++i) {
      weights[i].remove_hook(hooks[i]);
      in_place = in_place && made[i] == weights[i].grad().const_data_ptr();
    }
    expect_gradients_of_reference();
    ++step_;
    return in_place;
  }

  void destroy() { ddp_.reset(); }

 private:
  void expect_gradients_of_reference() {
    reference_->zero_grad();
    for (int rank = 0; rank < kRanks; ++rank) {
      (reference_->forward(batch_of(step_, rank)).pow(2).mean() / kRanks).backward();
    }
    expect_gradients_of(*reference_, *model_);
  }

  const int rank_;
  Squares model_ = squares();
  Squares reference_ = squares();
  std::unique_ptr<DistributedDataParallel<SquaresImpl>> ddp_;
  int step_ = 0;
};

void expect_full_of_their_numbers(const std::vector<torch::Tensor>& kept) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(kept[i].eq(static_cast<float>(i)).all().item<bool>()) << "tensor " << i;
  }
}

TEST(GradientMemory, BackwardWritesGradientsIntoTheirBuckets) {
  run_ranks(kRanks, [](Communicator& communicator) {
    std::vector<torch::Tensor> kept;
    Trainee trainee(communicator, true);
    trainee.step(0, kept);  // Buckets are formed anew after this step.
    trainee.step(0, kept);  // This step shows which allocations become gradients.
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(trainee.step(0, kept)) << step;
  });
}

TEST(GradientMemory, GradientsAreCopiedIfAskedFor) {
  run_ranks(kRanks, [](Communicator& communicator) {
    std::vector<torch::Tensor> kept;
    Trainee trainee(communicator, false);
    for (int step = 0; step < 4; ++step) EXPECT_FALSE(trainee.step(0, kept)) << step;
  });
}

// Other tensors are then taken for gradients and get their places; the program keeps them or not.
TEST(GradientMemory, PassesMayDifferFromEachOther) {
  run_ranks(kRanks, [](Communicator& communicator) {
    std::vector<torch::Tensor> kept;
    Trainee trainee(communicator, true);
    // The number depends on the rank, so that ranks differ, too.
    const int more = 1 + 7 * communicator.rank().value();
    for (const int number : {0, 0, 0, 1, 0, more, more, 0, 0}) trainee.step(number, kept);
    expect_full_of_their_numbers(kept);
    kept.clear();
    trainee.step(0, kept);
    trainee.step(0, kept);
    EXPECT_TRUE(trainee.step(0, kept)) << "where passes are alike again";
  });
}

// Rank 1 has no data left in a step that rank 0 cannot end.
TEST(GradientMemory, LentPlacesAreGivenBackWhereAStepFails) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    torch::nn::Linear model(kWidth, kWidth);
    model->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, communicator);
    std::vector<torch::Tensor> kept;
    const auto step = [&](int more) {
      take_step(ddp, batch_of(0, rank), [&] { make_more(more, kept); });
    };
    const auto loop = [&] {
      for (int i = 0; i < 3; ++i) step(0);
      const void* const place = model->weight.grad().const_data_ptr();
      step(8);
      const auto is_there = [&](const torch::Tensor& t) { return t.const_data_ptr() == place; };
      EXPECT_TRUE(std::ranges::any_of(kept, is_there));
      if (rank != 0) return;
      model->bias.mul_(model->weight.sum());
      step(0);
    };
    expect_contains(message_of<InvalidArgument>([&] { ddp.join(loop); }),
                    "parameter 'bias' is computed from others");
    expect_full_of_their_numbers(kept);
  });
}

TEST(GradientMemory, LentPlacesOutliveTheReplica) {
  std::vector<torch::Tensor> kept[kRanks];
  run_ranks(kRanks, [&](Communicator& communicator) {
    auto& own = kept[communicator.rank().value()];
    Trainee trainee(communicator, true);
    for (const int number : {0, 0, 0, 8}) trainee.step(number, own);
    trainee.destroy();
  });
  for (const auto& tensors : kept) expect_full_of_their_numbers(tensors);
}

// It is made in the place of the next gradient, which is reduced before it.
TEST(GradientMemory, TheGradientOfAnUnfrozenParameterIsItsOwn) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    ThreeSquares model = seeded<ThreeSquares>(8), reference = seeded<ThreeSquares>(8);
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 6; ++step) {
      for (ThreeSquares* each : {&model, &reference}) {
        (*each)->b->weight.set_requires_grad(step >= 4);
      }
      reference->zero_grad();
      for (int r = 0; r < kRanks; ++r) {
        const torch::Tensor rows = batch_of(step, r).narrow(0, 0, 8);
        (reference->forward(rows).pow(2).mean() / kRanks).backward();
      }
      ddp.zero_grad();
      ddp.forward(batch_of(step, rank).narrow(0, 0, 8)).pow(2).mean().backward();
      expect_gradients_of(*reference, ddp);
    }
  });
}

// A table whose gradient is as large as that of the weight behind it, except for some batches.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(bool sparse)
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, kWidth).sparse(sparse)))) {
  }
  torch::Tensor forward(const torch::Tensor& rows) { return square(table(rows)).pow(2).mean(); }
  torch::nn::Embedding table;
  torch::nn::Linear square = register_module("square", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Table);

TEST(GradientMemory, RowsOfATableAreItsOwn) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    const auto made = [](bool sparse) { return with_seed(8, [&] { return Table(sparse); }); };
    Table model = made(true), reference = made(false);
    DistributedDataParallel ddp(model, communicator, {.sparse_parameters = {"table.weight"}});
    for (const int rows : {kWidth, kWidth, kWidth, 8, kWidth, kWidth}) {
      const auto rows_of = [&](int r) { return (torch::arange(rows) * (r + 2)).remainder(9); };
      reference->zero_grad();
      for (int r = 0; r < kRanks; ++r) (reference->forward(rows_of(r)) / kRanks).backward();
      ddp.zero_grad();
      ddp.forward(rows_of(rank)).backward();
      const torch::Tensor& table = model->table->weight.grad();
      expect_close(table.to_dense(), reference->table->weight.grad(), "table");
      expect_close(model->square->weight.grad(), reference->square->weight.grad(), "square");
    }
  });
}

TEST(GradientMemory, WhatIsKeptInThePlaceOfAFrozenParameterStays) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Squares model = squares();
    DistributedDataParallel ddp(model, communicator);
    for (int number = 0; number < 4; ++number) take_step(ddp, batch_of(number, rank));
    const void* const places[] = {model->a->weight.grad().const_data_ptr(),
                                  model->b->weight.grad().const_data_ptr()};
    std::vector<torch::Tensor> kept;
    take_step(ddp, batch_of(4, rank), [&] {
      for (int i = 0; i < 8; ++i) kept.push_back(torch::full({kWidth, kWidth}, rank + 1.0));
    });
    const auto is_lent = [&](const torch::Tensor& tensor) {
      return std::ranges::find(places, tensor.const_data_ptr()) != std::end(places);
    };
    ASSERT_TRUE(std::ranges::any_of(kept, is_lent));
    for (const torch::nn::Linear& layer : {model->a, model->b}) {
      layer->weight.set_requires_grad(false);
    }
    take_step(ddp, batch_of(5, rank));
    for (const torch::Tensor& each : kept) EXPECT_TRUE(each.eq(rank + 1.0).all().item<bool>());
  });
}

// The bucket of the frozen parameter has nothing else to wait for.
TEST(GradientMemory, WhatIsWrittenToThePlaceOfAFrozenParameterInBackwardStays) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    ThreeSquares model = seeded<ThreeSquares>(8);
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1}});
    for (int number = 0; number < 4; ++number) take_step(ddp, batch_of(number, rank));
    const void* const place = model->b->weight.grad().const_data_ptr();
    torch::Tensor kept;
    take_step(ddp, batch_of(4, rank), [&] {
      std::vector<torch::Tensor> made;
      for (int i = 0; i < 16; ++i) {
        made.push_back(torch::full({kWidth, kWidth}, rank + 1.0));
        if (made.back().const_data_ptr() == place) kept = made.back();
      }
    });
    ASSERT_TRUE(kept.defined());
    model->b->weight.set_requires_grad(false);
    model->a->weight.register_hook([&](const torch::Tensor&) { kept.add_(10); });
    take_step(ddp, batch_of(5, rank));
    EXPECT_TRUE(kept.eq(rank + 11.0).all().item<bool>()) << kept[0][0];
  });
}

// A hook that makes tensors and keeps them, when told to.
class Making : public PlainReduction {
 public:
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    for (; more > 0; --more) made.push_back(torch::full({kWidth, kWidth}, 1.0f));
    return PlainReduction::start(communicator, bucket);
  }
  int more = 0;
  std::vector<torch::Tensor> made;
};

TEST(GradientMemory, WhatACommunicationHookMakesLiesInNoBucket) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    ThreeSquares model = seeded<ThreeSquares>(8);
    const auto hook = std::make_shared<Making>();
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {1}, .communication_hook = hook});
    std::vector<const void*> places;
    for (int number = 0; number < 4; ++number) take_step(ddp, batch_of(number, rank));
    for (const torch::Tensor& parameter : model->parameters()) {
      places.push_back(parameter.grad().const_data_ptr());
    }
    hook->more = 16;
    take_step(ddp, batch_of(4, rank));
    EXPECT_EQ(hook->made.size(), 16u);
    for (const torch::Tensor& each : hook->made) {
      EXPECT_EQ(std::ranges::find(places, each.const_data_ptr()), places.end());
    }
  });
}

// The backward pass of the sum returns one tensor as the gradient of both `position` and `hidden`.
// That of `position` is reduced first, while that of `hidden` has yet to be read, or added to if
// `beside`.
struct PositionsImpl : torch::nn::Module {
  explicit PositionsImpl(bool beside) : beside(beside) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = a->forward(x).view({1, kWidth, kWidth});
    const torch::Tensor first = beside ? b->forward(hidden) : torch::Tensor();
    const torch::Tensor sum = hidden + position.unsqueeze(0);
    return (beside ? torch::tanh(sum) + first : b->forward(sum)).squeeze(0);
  }
  const bool beside;
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kWidth, kWidth));
  torch::Tensor position = register_parameter("position", torch::randn({kWidth, kWidth}));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Positions);

TEST(GradientMemory, AGradientThatOthersStillReadIsReducedWhenTheyHave) {
  const auto train = [](Communicator& communicator, bool beside) {
    const int rank = communicator.rank().value();
    const auto made = [&] { return with_seed(8, [&] { return Positions(beside); }); };
    Positions model = made(), reference = made();
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {64}, .mean_division = MeanDivision::before_sum});
    torch::Tensor kept;
    model->b->weight.register_hook(
        [&](const torch::Tensor& gradient) { kept = gradient.detach(); });
    for (int step = 0; step < 6; ++step) {
      torch::Tensor own;  // This rank's gradient of b.weight.
      reference->zero_grad();
      for (const int of : {rank, 1 - rank}) {
        reference->forward(batch_of(step, of)).pow(2).mean().backward();
        if (of == rank) own = reference->b->weight.grad().clone();
      }
      for (const torch::Tensor& parameter : reference->parameters())
        parameter.mutable_grad() /= kRanks;
      ddp.zero_grad();
      ddp.forward(batch_of(step, rank)).pow(2).mean().backward();
      expect_gradients_of(*reference, *model);
      expect_close(kept, own, "what a hook keeps");
    }
  };
  run_ranks(kRanks, [&](Communicator& communicator) {
    for (const bool beside : {false, true}) train(communicator, beside);
  });
}

// Each weight is used several times in a pass, so that its gradient is formed early and is complete
// late.
struct UnrolledImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, bool a_first) {
    for (int turn = 0; turn < 3; ++turn) {
      for (const bool is_a : {a_first, !a_first}) x = torch::tanh((is_a ? a : b)->forward(x));
    }
    return x.pow(2).sum();
  }
  torch::nn::Linear a =
      register_module("a", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  torch::nn::Linear b =
      register_module("b", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
};
TORCH_MODULE(Unrolled);

TEST(GradientMemory, GradientsInEachOthersPlacesAreTheirOwn) {
  run_ranks(1, [](Communicator& communicator) {
    Unrolled model = seeded<Unrolled>(8), reference = seeded<Unrolled>(8);
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 8; ++step) {
      const bool a_first = step % 4 < 2;
      const torch::Tensor batch = batch_of(step, 0).narrow(0, 0, 8);
      ddp.zero_grad();
      reference->zero_grad();
      ddp.forward(batch, a_first).backward();
      reference->forward(batch, a_first).backward();
      expect_gradients_of(*reference, *model);
    }
  });
}

// The state is as large as the gradient of a parameter that is frozen once the state has been made.
TEST(GradientMemory, AnOptimizerThatStepsInBackwardKeepsItsStateElsewhere) {
  run_ranks(1, [](Communicator& communicator) {
    ThreeSquares early = seeded<ThreeSquares>(8), late = seeded<ThreeSquares>(8);
    const DistributedDataParallelOptions one_by_one{.bucket_bytes = {64}};
    DistributedDataParallel early_ddp(early, communicator, one_by_one);
    DistributedDataParallel late_ddp(late, communicator, one_by_one);
    const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD early_sgd(early->parameters(), momentum);
    torch::optim::SGD late_sgd(late->parameters(), momentum);
    for (int step = 0; step < 8; ++step) {
      if (step == 4) early_ddp.step_in_backward(early_sgd);
      for (auto* const ddp : {&early_ddp, &late_ddp}) {
        ddp->zero_grad();
        ddp->forward(batch_of(step, 0).narrow(0, 0, 8)).pow(2).mean().backward();
      }
      if (step >= 4) late_sgd.step();
      expect_same_bits(*early, *late);
      if (step != 4) continue;
      ASSERT_EQ(early_sgd.state().size(), 6u);
      for (const auto& [key, state] : early_sgd.state()) {
        const auto& own = static_cast<const torch::optim::SGDParamState&>(*state);
        for (const torch::Tensor& each : early->parameters()) {
          EXPECT_NE(own.momentum_buffer().const_data_ptr(), each.grad().const_data_ptr());
        }
      }
      for (const ThreeSquares& each : {early, late}) {
        for (const torch::Tensor& parameter : each->b->parameters())
          parameter.set_requires_grad(false);
      }
    }
  });
}

}  // namespace
}  // namespace stretto

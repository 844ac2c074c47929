// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/reducer/compressed_reduction.h"
#include "tests/support/torch_models.h"

// Parameters and buffers that are unfrozen or converted after a model has been wrapped. They are
// trained in the same step; if only some ranks have made the change, all ranks name them.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

struct NormalizedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(body(x))).pow(2).mean(); }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(kInputs, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
};
TORCH_MODULE(Normalized);

torch::Tensor batch_for(const Normalized& model, int rank) {
  const auto dtype = model->body->weight.scalar_type();
  return torch::linspace(rank, 1, 5 * kInputs, torch::kDouble).reshape({5, kInputs}).to(dtype);
}

constexpr const char* kFix =
    "not all ranks alike: do it on all ranks before the same forward pass: the model is not the "
    "same on all ranks: ";

TEST(ReplicaChanges, AParameterUnfrozenOnOneRankOnlyIsNamedOnAllAndTheNextStepMayFollow) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    reference->scale.set_requires_grad(true);
    if (rank == 1) model->scale.set_requires_grad(true);
    for (int attempt = 0; attempt < 2; ++attempt) {
      ddp.zero_grad();
      const auto text = message_of<Mismatch>([&] { loss_of(ddp, global_batch(0)).backward(); });
      expect_contains(text, std::string(kFix) + "parameter 'scale' has requires_grad false on " +
                                "rank 0; true on rank 1");
    }
    model->scale.set_requires_grad(true);
    for (int step = 0; step < 3; ++step) expect_step_like_one_process(ddp, reference, rank, step);
    EXPECT_EQ(ddp.trained_parameters().size(), 7u);
  });
}

TEST(ReplicaChanges, ThatARankTakesBackAreForgotten) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto step = [&] { loss_of(ddp, global_batch(0)).backward(); };
    if (rank == 1) model->scale.set_requires_grad(true);
    expect_contains(message_of<Mismatch>(step), "parameter 'scale'");
    if (rank == 1) model->scale.set_requires_grad(false);
    expect_step_like_one_process(ddp, reference, rank, 0);
    EXPECT_EQ(ddp.trained_parameters().size(), 6u);
  });
}

TEST(ReplicaChanges, AModelConvertedOnOneRankOnlyIsNamedOnAllAndTheNextStepMayFollow) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Normalized model;
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] {
      ddp.zero_grad();
      ddp.forward(batch_for(model, rank)).backward();
    };
    step();
    if (rank == 1) model->to(torch::kDouble);
    expect_contains(
        message_of<Mismatch>(step),
        std::string(kFix) + "parameter 'body.weight' has dtype Float on rank 0; Double on rank 1");
    model->to(torch::kFloat);  // On both ranks: it also converts the counts of batches to floats.
    EXPECT_NO_THROW(step());
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
}

struct OffsetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x + offset.to(x.dtype())).sum(); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, 2));
  torch::Tensor offset = register_buffer("offset", torch::zeros({kInputs}));
};
TORCH_MODULE(Offset);

TEST(ReplicaChanges, ABufferConvertedOnOneRankOnlyIsNamedOnAll) {
  for (const int converts : {0, 1}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      Offset model;
      DistributedDataParallel ddp(model, communicator);
      const auto step = [&] { ddp.forward(torch::ones({1, kInputs})).backward(); };
      step();
      if (communicator.rank() == Rank(converts)) {
        model->offset.set_data(model->offset.to(torch::kDouble));
      }
      expect_contains(message_of<Mismatch>(step),
                      std::string(kFix) + "buffer 'offset' has dtype " +
                          (converts == 1 ? "Float on rank 0; Double on rank 1"
                                         : "Double on rank 0; Float on rank 1"));
      if (communicator.rank() == Rank(1 - converts)) {
        model->offset.set_data(model->offset.to(torch::kDouble));
      }
      EXPECT_NO_THROW(step());
      if (communicator.rank() == Rank(0)) model->offset.fill_(1.0 / 3);
      EXPECT_NO_THROW(step());
      EXPECT_EQ(model->offset[0].item<double>(), 1.0 / 3) << "of rank 0, with all digits";
    });
  }
}

TEST(ReplicaChanges, ConvertedBuffersThatAreAlikeKeepAllTheirDigits) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Offset model;
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] { ddp.forward(torch::ones({1, kInputs})).backward(); };
    step();
    model->offset.set_data(torch::full({kInputs}, 1.0 / 3, torch::kDouble));
    EXPECT_NO_THROW(step());
    EXPECT_EQ(model->offset[0].item<double>(), 1.0 / 3);
  });
}

TEST(ReplicaChanges, ReplacedParametersAreComparedEvenIfTheirStepFails) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool changes = communicator.rank() == Rank(1);
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto step = [&] { loss_of(ddp, global_batch(0)).backward(); };
    torch::Tensor weight = model->last->weight;
    const torch::Tensor before = weight.detach().clone();
    if (changes) weight.set_data(before + 1);
    if (changes) model->scale.set_requires_grad(true);
    expect_contains(message_of<Mismatch>(step), "parameter 'scale'");
    if (changes) model->scale.set_requires_grad(false);
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_contains(message_of<Mismatch>(step), "parameters were replaced on some rank");
    }
    if (changes) weight.set_data(before);
    EXPECT_NO_THROW(step());
  });
}

TEST(ReplicaChanges, WhatIsTakenBackBeforeATrainingStepCostsNothing) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto place_after_step = [&] {
      loss_of(ddp, global_batch(0)).backward();
      return model->last->weight.grad().const_data_ptr();
    };
    for (int i = 0; i < 3; ++i) place_after_step();
    const void* const before = place_after_step();
    model->scale.set_requires_grad(true);
    {
      const torch::NoGradGuard no_grad;
      loss_of(ddp, global_batch(0));
    }
    model->scale.set_requires_grad(false);
    EXPECT_EQ(place_after_step(), before) << "another reducer has been built";
  });
}

TEST(ReplicaChanges, ARankWithoutABatchSendsItsConvertedBuffersAsTheOthersDo) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Offset model;
    DistributedDataParallel ddp(model, communicator);
    model->offset.set_data(model->offset.to(torch::kDouble));
    const int steps = communicator.rank() == Rank(0) ? 2 : 0;
    EXPECT_NO_THROW(ddp.join([&] {
      for (int step = 0; step < steps; ++step) ddp.forward(torch::ones({1, kInputs})).backward();
    }));
  });
}

TEST(ReplicaChanges, AllParametersFrozenOnOneRankOnlyAreNamedInTheSameStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool first = communicator.rank() == Rank(0);
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
    const auto step = [&] { ddp.forward(x, true).sum().backward(); };
    const auto freeze = [&](bool frozen) {
      for (torch::Tensor& parameter : model->parameters()) parameter.set_requires_grad(!frozen);
    };
    if (first) freeze(true);
    expect_contains(message_of<Mismatch>(step),
                    "4 parameters are frozen (requires_grad = false) on rank 0 and not on the "
                    "others: a.weight, a.bias, b.weight, b.bias. Fix: ");
    freeze(true);
    step();
    if (first) step();  // All ranks know that this is no step.
    freeze(false);
    ddp.zero_grad();
    step();
    expect_close(model->b->bias.grad(), torch::ones({2}), "b.bias");
    freeze(true);
    step();
    EXPECT_EQ(ddp.last_step().step, 4u);
  });
}

// Runs steps of the replicas and of the reference, with the scale unfrozen after the first step.
void expect_unfreezing_works(const DistributedDataParallelOptions& options, double tolerance) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallelOptions own = options;
    if (own.codec == nullptr) own.communication_hook = std::make_shared<Bf16Reduction>();
    DistributedDataParallel ddp(model, communicator, own);
    for (int step = 0; step < 4; ++step) {
      if (step > 0) reference->scale.set_requires_grad(true);
      if (step > 0) model->scale.set_requires_grad(true);
      reference->zero_grad();
      loss_of(*reference, global_batch(step)).backward();
      ddp.zero_grad();
      loss_of(ddp, part(global_batch(step), rank)).backward();
      for (const auto& item : reference->named_parameters()) {
        if (!item.value().requires_grad()) continue;
        const auto gradient = ddp.named_parameters()[item.key()].grad();
        EXPECT_TRUE(torch::allclose(gradient, item.value().grad(), tolerance, tolerance))
            << item.key() << " in step " << step;
      }
    }
  });
}

TEST(ReplicaChanges, GradientsOfUnfrozenParametersTravelAsTheHookSays) {
  expect_unfreezing_works({.bucket_bytes = {64, 256}}, 1e-2);
  expect_unfreezing_works({.bucket_bytes = {64, 256}, .codec = top_k({.density = 1})}, 1e-6);
}

TEST(ReplicaChanges, UnfrozenParametersAreSteppedInBackward) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    std::vector<std::uint64_t> hashes;
    for (const bool in_backward : {false, true}) {
      Net model = net();
      DistributedDataParallel ddp(model, communicator, small_buckets());
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      if (in_backward) ddp.step_in_backward(optimizer);
      for (int step = 0; step < 4; ++step) {
        if (step == 1) model->scale.set_requires_grad(true);
        ddp.zero_grad();
        loss_of(ddp, part(global_batch(step), rank)).backward();
        if (!in_backward) optimizer.step();
      }
      hashes.push_back(ddp.parameter_hash());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

TEST(ReplicaChanges, AnUnfrozenParameterThatARankDoesNotUseIsNamedOrItsGradientIsZeroThere) {
  for (const bool find_unused : {false, true}) {
    run_ranks(kRanks, [&](Communicator& communicator, int rank) {
      Branches model;
      for (torch::Tensor& parameter : model->b->parameters()) parameter.set_requires_grad(false);
      DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = find_unused});
      const auto step = [&](bool both) {
        ddp.zero_grad();
        ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
      };
      step(true);
      for (torch::Tensor& parameter : model->b->parameters()) parameter.set_requires_grad(true);
      if (find_unused) {
        step(rank == 0);
        for (const torch::Tensor& parameter : model->b->parameters()) {
          expect_close(parameter.grad(), torch::full_like(parameter, 0.5), "b");
        }
      } else {
        expect_contains(message_of<InvalidArgument>([&] { step(rank == 0); }),
                        "2 parameters got no gradient on rank 1: b.weight, b.bias; used on rank 0");
      }
      step(true);
      for (const torch::Tensor& parameter : model->b->parameters()) {
        expect_close(parameter.grad(), torch::ones_like(parameter), "b");
      }
    });
  }
}

TEST(ReplicaChanges, TheOtherGradientsOfTheStepAreJudgedToo) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    model->a->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](bool both) {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
    };
    step(true);
    model->a->bias.set_requires_grad(true);
    const bool both = communicator.rank() == Rank(0);
    expect_contains(message_of<InvalidArgument>([&] { step(both); }),
                    "2 parameters got no gradient on rank 1: b.weight, b.bias; used on rank 0");
    step(true);
    expect_close(model->a->bias.grad(), torch::ones({2}), "a.bias");
  });
}

// A layer that is used only if `both`, whatever its type. It is in the first bucket, and its
// gradients come last.
struct SkippableImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    if (!both) return last(x).pow(2).mean();
    return last(first(x.to(first->weight.scalar_type())).to(x.scalar_type())).pow(2).mean();
  }
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kInputs, 2));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(Skippable);

TEST(ReplicaChanges, AGradientLeftFromBeforeAConversionIsNoneOfTheStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Skippable model;
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](bool both) { ddp.forward(torch::ones({1, kInputs}), both).backward(); };
    step(true);
    model->first->to(torch::kDouble);
    const bool both = communicator.rank() == Rank(0);
    expect_contains(
        message_of<InvalidArgument>([&] { step(both); }),
        "2 parameters got no gradient on rank 1: first.weight, first.bias; used on rank 0");
    EXPECT_NO_THROW(step(true));
  });
}

TEST(ReplicaChanges, GradientsOfConvertedParametersAreAddedToOutsideOfTheBuckets) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Skippable reference = seeded<Skippable>(1);
    Skippable model = seeded<Skippable>(1);
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {1}, .rebuild_buckets = false});
    for (int step = 0; step < 3; ++step) {
      if (step == 1) reference->first->to(torch::kDouble);
      if (step == 1) model->first->to(torch::kDouble);
      const auto batch = global_batch(step);
      reference->forward(batch.data, true).backward();
      ddp.forward(part(batch, rank).data, true).backward();
      for (const auto& item : reference->named_parameters()) {
        expect_close(ddp.named_parameters()[item.key()].grad().to(torch::kDouble),
                     item.value().grad().to(torch::kDouble), item.key());
      }
    }
  });
}

// Layers are registered in the order of their gradients, so that buckets are formed anew after the
// first step.
struct WideImpl : torch::nn::Module {
  static constexpr int kWidth = 64;  // The gradient of a square is large enough for a bucket.
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(first(x))).pow(2).mean();
  }
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kWidth, 2));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Wide);

// Runs steps, and transposes a weight before step `transposed_in`, in place or `elsewhere`. Before
// step 0 buckets have yet to be formed anew; in later steps backward writes into them.
void expect_transposing_works(int transposed_in, bool elsewhere) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    Wide reference = seeded<Wide>(1), model = seeded<Wide>(1);
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < transposed_in + 3; ++step) {
      for (const torch::Tensor& weight : {reference->first->weight, model->first->weight}) {
        if (step != transposed_in) break;
        const torch::Tensor transposed = weight.detach().t();
        weight.set_data(elsewhere ? transposed.clone() : transposed);
      }
      const auto data = with_seed(static_cast<std::uint64_t>(step), [] {
        return torch::randn({4 * kRanks, WideImpl::kWidth});
      });
      reference->zero_grad();
      reference->forward(data).backward();
      ddp.zero_grad();
      ddp.forward(data.narrow(0, rank * 4, 4)).backward();
      expect_gradients_of(*reference, ddp);
      EXPECT_EQ(model->first->weight.grad().strides(), model->first->weight.strides());
    }
  });
}

TEST(ReplicaChanges, AParameterOfOtherStridesHasItsGradientInThem) {
  for (const bool elsewhere : {true, false}) {
    expect_transposing_works(0, elsewhere);
    expect_transposing_works(4, elsewhere);
  }
}

TEST(ReplicaChanges, AFirstStepThatFailsIsNoPromiseOfTheStaticGraph) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Skippable model;
    DistributedDataParallel ddp(model, communicator, {.static_graph = true});
    const auto step = [&] {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, kInputs}), true).backward();
    };
    if (rank == 1) model->first->to(torch::kDouble);
    expect_contains(message_of<Mismatch>(step),
                    "parameter 'first.weight' has dtype Float on rank 0; Double on rank 1");
    if (rank == 1) model->first->to(torch::kFloat);
    for (int i = 0; i < 2; ++i) EXPECT_NO_THROW(step());
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
  run_ranks(kRanks, [](Communicator& communicator) {
    Skippable model;
    DistributedDataParallel ddp(model, communicator, {.static_graph = true});
    const auto step = [&] { ddp.forward(torch::ones({1, kInputs}), true).backward(); };
    if (communicator.rank() == Rank(1)) model->first->weight.set_requires_grad(false);
    EXPECT_THROW(step(), Mismatch);
    model->first->weight.set_requires_grad(true);
    for (int i = 0; i < 2; ++i) EXPECT_NO_THROW(step());
  });
}

// If it were the second step, the layer's bias, which is frozen in it, would have to stay frozen.
TEST(ReplicaChanges, TheFirstStepOfAStaticGraphIsThatInWhichATableIsUnfrozen) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    torch::nn::Linear layer(2, 2);
    torch::nn::Sequential model(table, layer);
    table->weight.set_requires_grad(false);
    DistributedDataParallel ddp(model, communicator, {.static_graph = true});
    table->weight.set_requires_grad(true);
    for (int step = 0; step < 3; ++step) {
      layer->bias.set_requires_grad(step != 1);
      EXPECT_NO_THROW(ddp.forward(torch::zeros({1}, torch::kLong)).sum().backward());
    }
  });
}

TEST(ReplicaChanges, GradientsAccumulatedInNoSyncBelongToTheStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    expect_step_like_one_process(ddp, reference, communicator.rank().value(), 0);
    reference->scale.set_requires_grad(true);
    model->scale.set_requires_grad(true);
    reference->zero_grad();
    ddp.zero_grad();
    for (int step = 1; step < 4; ++step) {
      loss_of(*reference, global_batch(step)).backward();
      const auto backward = [&] {
        loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
      };
      if (step == 3) {
        backward();
        continue;
      }
      const auto guard = ddp.no_sync();
      backward();
    }
    expect_gradients_of(*reference, ddp);
  });
}

TEST(ReplicaChanges, ConvertedModelsMayBeCheckpointed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Checkpointed model = seeded<Checkpointed>(1);
    Checkpointed reference = seeded<Checkpointed>(1);
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 3; ++step) {
      const auto dtype = step == 0 ? torch::kFloat : torch::kDouble;
      reference->to(dtype);
      ddp.to(dtype);
      const auto x = torch::full({2, kInputs}, 1 + step, dtype);
      reference->zero_grad();
      reference->plain(x).backward();
      ddp.zero_grad();
      ddp.forward(x).backward();
      expect_gradients_of(*reference, ddp);
    }
  });
}

}  // namespace
}  // namespace stretto

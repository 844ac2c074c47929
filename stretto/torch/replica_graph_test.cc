// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/torch_models.h"

// Which parameters a step uses, how often, and with which kind of gradient.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// All layers are checkpointed, so that no gradient arrives in the outermost pass.
struct OnlyCheckpointsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool all) {
    const auto hidden = Checkpoint::apply(x, &a);
    return (all ? Checkpoint::apply(hidden, &b) : hidden).sum();
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(OnlyCheckpoints);

// Hides its tensor from DistributedDataParallel.
struct Hidden {
  torch::Tensor tensor;
};
struct HiddenOutputImpl : OnlyCheckpointsImpl {
  Hidden forward(const torch::Tensor& x, bool all) {
    return {OnlyCheckpointsImpl::forward(x, all)};
  }
};
TORCH_MODULE(HiddenOutput);

TEST(ReplicaGraph, AParameterLeftOutOfCheckpointsIsNamedInTheSameStep) {
  run_ranks(kRanks, [](Communicator& communicator) {
    OnlyCheckpoints model;
    DistributedDataParallel ddp(model, communicator);
    HiddenOutput hidden;
    DistributedDataParallel hidden_ddp(hidden, communicator);
    const auto x = torch::ones({2, kInputs}).set_requires_grad(true);
    for (int step = 0; step < 2; ++step) {
      ddp.forward(x, true).backward();
      hidden_ddp.forward(x * 2, true).tensor.backward();
      EXPECT_GT(hidden_ddp.last_step().forward_seconds, 0);
    }
    const std::string text = "2 parameters got no gradient on ranks 0, 1: b.weight, b.bias";
    expect_contains(message_of<InvalidArgument>([&] { ddp.forward(x, false).backward(); }), text);
    expect_contains(
        message_of<InvalidArgument>([&] { hidden_ddp.forward(x * 2, false).tensor.backward(); }),
        text);
  });
}

TEST(ReplicaGraph, UnusedParametersAreReducedWhereAnyRankHasThem) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    Branches model;
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto x = torch::full({1, kInputs}, static_cast<float>(rank + 1));
    const auto step = [&](bool both) { ddp.forward(x, both).sum().backward(); };
    step(false);
    EXPECT_FALSE(model->b->weight.grad().defined()) << "no rank has it: an optimizer steps over it";
    expect_close(model->a->bias.grad(), torch::ones({2}), "a.bias");
    for (int i = 0; i < 3; ++i) {
      model->zero_grad();
      step(rank == 1);
      expect_close(model->b->weight.grad(), torch::full({2, kInputs}, 2.0f / 3), "b.weight");
      expect_close(model->a->weight.grad(), torch::full({2, kInputs}, 2.0f), "a.weight");
    }
    // A gradient that was not cleared and that no rank uses keeps its bits.
    const auto before = model->b->weight.grad().clone();
    step(false);
    EXPECT_TRUE(torch::equal(before, model->b->weight.grad()));
    EXPECT_NO_THROW(ddp.verify_replicas());
  });
}

TEST(ReplicaGraph, ARankWhoseLossReachesNoParameterTakesPart) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
    model->zero_grad();
    auto output = ddp.forward(x, true);
    if (communicator.rank() == Rank(1)) {
      for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
      output = ddp.module()->forward(x, true);
      for (auto& parameter : model->parameters()) parameter.set_requires_grad(true);
      output = ddp.forward(x, false) * 0 + output;
    }
    output.sum().backward();
    expect_close(model->b->bias.grad(), torch::full({2}, 0.5f), "b.bias");
  });
}

TEST(ReplicaGraph, GradientsAccumulatedInNoSyncCountAsUsed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    const auto x = torch::ones({1, kInputs});
    {
      auto guard = ddp.no_sync();
      ddp.forward(x, true).sum().backward();
    }
    ddp.forward(x, false).sum().backward();
    expect_close(model->a->bias.grad(), torch::full({2}, 2.0f), "a.bias");
    expect_close(model->b->bias.grad(), torch::ones({2}), "b.bias");
  });
}

// Rank 0 uses b only inside no_sync(), and then clears the gradient.
TEST(ReplicaGraph, GradientsThatWereClearedAfterNoSyncCountAsUnused) {
  for (const bool find_unused : {true, false}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      const bool first = communicator.rank() == Rank(0);
      Branches model;
      DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = find_unused});
      const auto x = torch::ones({1, kInputs});
      if (first) {
        const auto guard = ddp.no_sync();
        ddp.forward(x, true).sum().backward();
      }
      ddp.zero_grad();
      const auto step = [&] { ddp.forward(x, !first).sum().backward(); };
      if (!find_unused) {
        expect_contains(message_of<InvalidArgument>(step),
                        "2 parameters got no gradient on rank 0: b.weight, b.bias; used on rank 1");
        return;
      }
      step();
      ASSERT_TRUE(model->b->bias.grad().defined());
      expect_close(model->b->bias.grad(), torch::full({2}, 0.5), "b.bias");
    });
  }
}

// With find_unused, only rank 0 uses b inside no_sync().
TEST(ReplicaGraph, WhatNoSyncHasAddedIsReducedThoughItsParameterIsFrozenSince) {
  for (const bool find_unused : {true, false}) {
    run_ranks(kRanks, [&](Communicator& communicator, int rank) {
      Branches model;
      DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = find_unused});
      for (int step = 0; step < 3; ++step) {
        const auto dtype = step == 0 ? torch::kFloat : torch::kDouble;
        ddp.to(dtype);
        const auto x = torch::full({1, kInputs}, 1 + rank, dtype);
        for (auto& parameter : ddp.parameters()) parameter.set_requires_grad(true);
        ddp.zero_grad();
        {
          const auto guard = ddp.no_sync();
          ddp.forward(x, rank == 0 || !find_unused).sum().backward();
        }
        model->b->weight.set_requires_grad(false);
        ddp.forward(x, step == 1 || !find_unused).sum().backward();
        expect_close(model->b->weight.grad(),
                     torch::full({2, kInputs}, find_unused ? 0.5 : 1.5, dtype), "b.weight");
        ddp.zero_grad();
        ddp.forward(x, true).sum().backward();
        EXPECT_FALSE(model->b->weight.grad().defined());
      }
    });
  }
}

// One layer is used inside a checkpoint, inside another checkpoint, and outside.
struct RepeatedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return layer(Checkpoint::apply(Checkpoint::apply(head(x), &layer), &layer)).pow(2).mean();
  }
  torch::Tensor plain(const torch::Tensor& x) { return layer(layer(layer(head(x)))).pow(2).mean(); }
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(Repeated);

TEST(ReplicaGraph, AStaticGraphMayAccumulateSeveralTimesIntoAParameter) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Repeated reference = seeded<Repeated>(3), model = seeded<Repeated>(3);
    {
      DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1}, .static_graph = true});
      for (int step = 0; step < 3; ++step) {
        const auto data = global_batch(step).data;
        reference->zero_grad();
        reference->plain(data).backward();
        model->zero_grad();
        ddp.forward(data.narrow(0, rank * 4, 4)).backward();
        expect_close(model->layer->weight.grad(), reference->layer->weight.grad(), "layer");
        expect_close(model->head->weight.grad(), reference->head->weight.grad(), "head");
      }
    }
  });
}

TEST(ReplicaGraph, AStaticGraphThatChangesOnOneRankIsNamedOnAll) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool changes = communicator.rank() == Rank(1);
    Branches model;
    DistributedDataParallel ddp(model, communicator, {.static_graph = true});
    const auto x = torch::ones({1, kInputs});
    const auto step = [&](bool both) { ddp.forward(x, both).sum().backward(); };
    step(true);
    const std::string text =
        "static_graph was promised, but 2 parameters got more or fewer gradients than in the first "
        "step on rank 1: ";
    expect_contains(message_of<InvalidArgument>([&] { step(!changes); }),
                    text + "b.weight, b.bias. Fix: ");
    model->zero_grad();
    step(true);  // The failure ended that step, but not the job.
    expect_close(model->b->bias.grad(), torch::ones({2}), "gradient of the next step");
    const auto twice = [&] {
      const auto once = ddp.forward(x, true);
      (changes ? once + model->a(x) : once).sum().backward();
    };
    EXPECT_EQ(message_of<InvalidArgument>(twice), "") << "added up before it is accumulated";
  });
}

TEST(ReplicaGraph, AStaticGraphThatUsesMoreThanItsFirstStepIsNamed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool changes = communicator.rank() == Rank(0);
    Branches model;
    DistributedDataParallel ddp(model, communicator, {.static_graph = true});
    const auto step = [&](bool both) {
      ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
    };
    step(false);
    expect_contains(message_of<InvalidArgument>([&] { step(changes); }),
                    "than in the first step on rank 0: b.weight, b.bias. Fix: ");
  });
}

TEST(ReplicaGraph, TheFirstStepOfAStaticGraphShowsTheOrderOfItsGradients) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1}, .static_graph = true});
    for (int step = 0; step < 2; ++step) {
      loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
      const std::size_t first = ddp.bucket_plan().front().gradients.front();
      EXPECT_EQ(ddp.trained_parameters()[first].name.substr(0, 5), "last.") << "step " << step;
    }
  });
}

struct PerhapsRepeatedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool twice) {
    const auto hidden = head(x);
    return layer(twice ? Checkpoint::apply(hidden, &layer) : hidden).pow(2).mean();
  }
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(PerhapsRepeated);

TEST(ReplicaGraph, AGradientThatArrivesTwiceOnOneRankIsNamedOnAll) {
  run_ranks(kRanks, [](Communicator& communicator) {
    PerhapsRepeated model;
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](bool twice) {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, kInputs}), twice).backward();
    };
    const auto text = message_of<InvalidArgument>([&] { step(communicator.rank() == Rank(1)); });
    expect_contains(text,
                    "2 parameters got a gradient a second time in one step on rank 1: layer.");
    EXPECT_NO_THROW(step(false));
  });
}

TEST(ReplicaGraph, AParameterFrozenOnOneRankBeforeBackwardIsNamedOnAll) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto loss = loss_of(ddp, global_batch(0));
    if (communicator.rank() == Rank(1)) model->last->bias.set_requires_grad(false);
    expect_contains(message_of<InvalidArgument>([&] { loss.backward(); }),
                    "1 parameter got no gradient on rank 1: last.bias; used on rank 0");
  });
}

// An embedding of whose rows each batch uses few, and a layer behind it.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse)
      : embedding(register_module(
            "embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 3).sparse(sparse)))),
        layer(register_module("layer", torch::nn::Linear(3, 2))) {}
  torch::Tensor forward(const torch::Tensor& words) {
    return layer(words.numel() > 0 ? embedding(words) : torch::ones({1, 3})).pow(2).mean();
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Words);

TEST(ReplicaGraph, SparseGradientsAreTheMeanOfDenseOnes) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Words dense = with_seed(4, [] { return Words(false); });
    Words model = with_seed(4, [] { return Words(true); });
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 3; ++step) {
      const auto words = with_seed(50 + static_cast<std::uint64_t>(step),
                                   [] { return torch::randint(0, 50, {2 * 6}); });
      dense->zero_grad();
      dense->forward(words).backward();
      model->zero_grad();
      ddp.forward(words.narrow(0, rank * 6, 6)).backward();
      EXPECT_TRUE(model->embedding->weight.grad().is_sparse());
      expect_close(model->embedding->weight.grad().to_dense(), dense->embedding->weight.grad(),
                   "embedding");
      expect_close(model->layer->weight.grad(), dense->layer->weight.grad(), "layer");
    }
    // Only rank 0 uses the embedding.
    model->zero_grad();
    ddp.forward(rank == 0 ? torch::tensor({7}) : torch::empty({0}, torch::kLong)).backward();
    const auto gradient = model->embedding->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient._nnz(), 1);
    EXPECT_EQ(gradient.coalesce().indices().item<std::int64_t>(), 7);
  });
}

TEST(ReplicaGraph, SparseGradientsOfNoSyncAreReducedThoughTheTableIsConvertedOrFrozenSince) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Words model = with_seed(4, [] { return Words(true); });
    DistributedDataParallel ddp(model, communicator);
    const auto backward = [&](std::int64_t word) { ddp.forward(torch::tensor({word})).backward(); };
    backward(0);
    ddp.to(torch::kDouble);
    {
      const auto guard = ddp.no_sync();
      backward(10 + rank);
    }
    backward(20 + rank);
    EXPECT_EQ(model->embedding->weight.grad()._nnz(), 5);
    {
      const auto guard = ddp.no_sync();
      backward(30 + rank);
    }
    model->embedding->weight.set_requires_grad(false);
    backward(40 + rank);
    EXPECT_EQ(model->embedding->weight.grad()._nnz(), 7);
    EXPECT_EQ(model->embedding->weight.grad().scalar_type(), torch::kDouble);
  });
}

// A model of embeddings only; each batch decides which of them it uses.
struct OnlyWordsImpl : torch::nn::Module {
  explicit OnlyWordsImpl(bool sparse) {
    for (const char* name : {"first", "second", "never"}) {
      register_module(
          name, torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(20, 3).sparse(sparse)));
    }
  }
  torch::Tensor forward(const torch::Tensor& words, bool both) {
    const auto of = [&](const char* name) {
      return named_children()[name]->as<torch::nn::EmbeddingBag>()->forward(words);
    };
    return (both ? of("first") * of("second") : of("first")).pow(2).mean();
  }
};
TORCH_MODULE(OnlyWords);

// Runs steps in which some ranks or no ranks use the second table. Compares with dense gradients of
// one process.
void expect_only_sparse_like_dense(int ranks, const DistributedDataParallelOptions& options) {
  run_ranks(ranks, [&](Communicator& communicator) {
    OnlyWords dense = with_seed(4, [] { return OnlyWords(false); });
    OnlyWords model = with_seed(4, [] { return OnlyWords(true); });
    DistributedDataParallel ddp(model, communicator, options);
    torch::optim::SGD optimizer(ddp.parameters(), 0.5), alone(dense->parameters(), 0.5);
    for (int step = 0; step < 4; ++step) {
      const auto words_of = [&](int rank) {
        return with_seed(static_cast<std::uint64_t>(50 + 10 * step + rank), [] {
          return torch::randint(0, 20, {2, 5});
        });
      };
      const auto both = [&](int rank) { return (rank + step) % 3 == 0; };
      alone.zero_grad();
      for (int rank = 0; rank < ranks; ++rank) {
        (dense->forward(words_of(rank), both(rank)) / ranks).backward();
      }
      optimizer.zero_grad();
      const int rank = communicator.rank().value();
      ddp.forward(words_of(rank), both(rank)).backward();
      for (const auto& item : dense->named_parameters()) {
        const auto& gradient = model->named_parameters()[item.key()].grad();
        ASSERT_EQ(gradient.defined(), item.value().grad().defined()) << item.key();
        if (!gradient.defined()) continue;
        EXPECT_TRUE(gradient.is_sparse());
        expect_close(gradient.to_dense(), item.value().grad(), item.key());
      }
      optimizer.step();
      alone.step();
    }
    expect_equal_parameters(*model, *dense);
    ddp.verify_replicas();
    EXPECT_EQ(ddp.last_step().step, 4u);
    EXPECT_EQ(ddp.logging_data().ints_map.at("num_buckets_reduced"), 0);
  });
}

TEST(ReplicaGraph, AllGradientsMayBeSparse) {
  for (const int ranks : {2, 3}) {
    expect_only_sparse_like_dense(ranks, {});
    expect_only_sparse_like_dense(ranks, {.find_unused_parameters = true});
  }
}

// The sum of a table, with a sparse gradient that has `sparse_dimensions` sparse dimensions.
struct SparseSum : torch::autograd::Function<SparseSum> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& table, std::int64_t sparse_dimensions) {
    context->saved_data["dimensions"] = sparse_dimensions;
    return table.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    return {dense().to_sparse(context->saved_data["dimensions"].toInt()), torch::Tensor()};
  }
  // Some rows are zero, and some elements of other rows.
  static torch::Tensor dense() {
    torch::Tensor values = torch::arange(24, torch::kFloat).reshape({4, 2, 3});
    values.masked_fill_(values.remainder(5) == 0, 0);
    values[2].zero_();
    return values;
  }
};
struct OneTableImpl : torch::nn::Module {
  torch::Tensor forward(std::int64_t dimensions) { return SparseSum::apply(table, dimensions); }
  torch::Tensor table = register_parameter("table", torch::ones({4, 2, 3}));
};
TORCH_MODULE(OneTable);

TEST(ReplicaGraph, SparseGradientsHaveAnyNumberOfSparseDimensions) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    OneTable model;
    DistributedDataParallel ddp(model, communicator, {.sparse_parameters = {"table"}});
    for (const int on_rank_1 : {1, 2, 3}) {
      model->zero_grad();
      ddp.forward(rank == 1 ? on_rank_1 : 1).backward();
      const torch::Tensor gradient = model->table.grad();
      EXPECT_EQ(gradient.sparse_dim(), 1);
      expect_close(gradient.to_dense(), SparseSum::dense(), "sparse dimensions");
    }
  });
  run_ranks(1, [](Communicator& communicator) {
    OneTable model;
    model->to(torch::kBFloat16);
    expect_contains(message_of<InvalidArgument>([&] {
                      DistributedDataParallel ddp(model, communicator,
                                                  {.sparse_parameters = {"table"}});
                    }),
                    "parameter 'table' has sparse gradients of type BFloat16; only");
  });
}

// Covers a rank that has run out of batches, gradients added in no_sync(), and an epoch that not
// all ranks have begun.
TEST(ReplicaGraph, ModelsOfSparseGradientsOnlyAreTrainedLikeOthers) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    OnlyWords model = with_seed(4, [] { return OnlyWords(true); });
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] { ddp.forward(torch::tensor({{1, rank + 2}}), false).backward(); };
    ddp.join([&] {
      for (int batch = 0; batch <= rank; ++batch) {
        model->zero_grad();
        step();
      }
    });
    const auto gradient = model->named_parameters()["first.weight"].grad().to_dense();
    EXPECT_TRUE(gradient[2].equal(torch::zeros({3}))) << "rank 0 had left";
    ddp.verify_replicas();
    model->zero_grad();
    {
      auto guard = ddp.no_sync();
      step();
    }
    step();
    EXPECT_GT(model->named_parameters()["first.weight"].grad()._nnz(), 3);
    if (rank == 1) ddp.set_epoch(7);
    expect_contains(message_of<Mismatch>(step), "rank 1 has begun epoch 7");
  });
}

}  // namespace
}  // namespace stretto

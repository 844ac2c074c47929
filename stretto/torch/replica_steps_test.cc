// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/buffer_hook.h"
#include "stretto/torch/distributed_data_parallel.h"
#include "stretto/torch/parameter_hook.h"
#include "tests/support/failures.h"
#include "tests/support/own_timeout.h"
#include "tests/support/torch_models.h"

// The kinds of steps that programs take, and the costs that are reported for them.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

TEST(ReplicaSteps, GradientsInsideNoSyncStayWhereAutogradPutsThem) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net();
    for (int step = 0; step < 3; ++step) loss_of(*reference, global_batch(step)).backward();
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const auto accumulate = [&](int step) {
      auto guard = ddp.no_sync();
      loss_of(ddp, part(global_batch(step), rank)).backward();
    };
    accumulate(0);
    const torch::Tensor first = model->first->weight.grad();
    Net local = net();
    loss_of(*local, part(global_batch(0), rank)).backward();
    expect_close(first, local->first->weight.grad(), "that of this rank");
    accumulate(1);
    EXPECT_TRUE(first.is_same(model->first->weight.grad())) << "nothing is copied";
    loss_of(ddp, part(global_batch(2), rank)).backward();
    EXPECT_FALSE(first.is_same(model->first->weight.grad())) << "in a bucket";
    expect_gradients_of(*reference, *model);
  });
}

// A hook that takes 20 ms.
struct SlowBuffers : BufferHook {
  std::string name() const override { return "slow"; }
  void run(const BufferCall&) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
};

TEST(ReplicaSteps, WhatBuffersTakeIsExposed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, communicator,
                                {.buffer_hook = std::make_shared<SlowBuffers>()});
    ddp.forward(torch::ones({4, kInputs})).sum().backward();
    const StepStatistics& step = ddp.last_step();
    EXPECT_GE(step.exposed_seconds, 0.02);
    EXPECT_GE(step.forward_seconds, 0.02);
    EXPECT_LE(step.forward_begin, step.begin);
    EXPECT_EQ(step.bytes, 128u) << "a cache line for each parameter";
    EXPECT_EQ(step.step, 1u);
  });
}

TEST(ReplicaSteps, TheTimeoutHoldsForVerification) {
  OwnTimeout timeout;
  run_ranks(kRanks, [&](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.timeout = OwnTimeout::kTimeout});
    timeout.expect_of(communicator, [&] { ddp.verify_replicas(); });
  });
}

// Layers are used in the opposite order of their registration; `b` is used only if `all`.
struct ReversedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, bool all) {
    x = torch::tanh(c(x));
    if (all) x = torch::tanh(b(x));
    return a(x).pow(2).mean();
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(Reversed);

TEST(ReplicaSteps, BucketsAreRebuiltWithUnusedParameters) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Reversed reference = seeded<Reversed>(6), model = seeded<Reversed>(6);
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {1}, .find_unused_parameters = true});
    const auto first_to_leave = [&] {
      return ddp.trained_parameters()[ddp.bucket_plan().front().gradients.front()].name;
    };
    EXPECT_EQ(first_to_leave(), "c.bias");
    for (int step = 0; step < 4; ++step) {
      // Rank 1 leaves a layer out in each step, and rank 0 in every other step.
      const auto all = [&](int of_rank) { return of_rank == 0 && step % 2 == 0; };
      const auto data = global_batch(step).data;
      reference->zero_grad();
      for (int r = 0; r < kRanks; ++r) {
        (reference->forward(data.narrow(0, r * 4, 4), all(r)) / kRanks).backward();
      }
      ddp.zero_grad();
      ddp.forward(data.narrow(0, rank * 4, 4), all(rank)).backward();
      expect_gradients_of(*reference, ddp);
    }
    EXPECT_EQ(first_to_leave().substr(0, 2), "a.");
  });
}

// A checkpointed part, and a branch that only rank 0 uses.
struct CheckpointedBranchImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool all) {
    const auto y = Checkpoint::apply(first(x), &inner);
    return (all ? branch(y) : y).pow(2).mean();
  }
  torch::Tensor plain(const torch::Tensor& x, bool all) {
    const auto y = inner(first(x));
    return (all ? branch(y) : y).pow(2).mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, 4));
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(4, 4));
  torch::nn::Linear branch = register_module("branch", torch::nn::Linear(4, 4));
};
TORCH_MODULE(CheckpointedBranch);

TEST(ReplicaSteps, CheckpointsMayStandBesideUnusedParameters) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    CheckpointedBranch reference = seeded<CheckpointedBranch>(7),
                       model = seeded<CheckpointedBranch>(7);
    DistributedDataParallel ddp(model, communicator,
                                {.bucket_bytes = {1}, .find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const auto data = global_batch(step).data;
      reference->zero_grad();
      for (int r = 0; r < kRanks; ++r) {
        (reference->plain(data.narrow(0, r * 4, 4), r == 0) / kRanks).backward();
      }
      ddp.zero_grad();
      ddp.forward(data.narrow(0, rank * 4, 4), rank == 0).backward();
      expect_gradients_of(*reference, ddp);
    }
  });
}

TEST(ReplicaSteps, OneRankMayEvaluateAlone) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] { ddp.forward(torch::ones({4, kInputs})).sum().backward(); };
    step();
    if (communicator.rank() == Rank(1)) {
      const torch::NoGradGuard no_grad;
      ddp.eval();
      EXPECT_TRUE(ddp.forward(torch::ones({1, kInputs})).isfinite().all().item<bool>());
      ddp.train();
    }
    step();
    ddp.verify_replicas();
  });
}

// One layer under two names, and parameters of three types.
struct MixtureImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto wide = again(layer(x)).to(torch::kDouble) * scale;
    return (wide.to(torch::kBFloat16) + shift).to(torch::kFloat).sum();
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear again = register_module("again", layer);
  torch::Tensor scale = register_parameter("scale", torch::ones({kInputs}, torch::kDouble));
  torch::Tensor shift = register_parameter("shift", torch::ones({kInputs}, torch::kBFloat16));
};
TORCH_MODULE(Mixture);

TEST(ReplicaSteps, LayersMayBeSharedAndTypesMixed) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Mixture reference = seeded<Mixture>(8), model = seeded<Mixture>(8);
    DistributedDataParallel ddp(model, communicator);
    EXPECT_EQ(ddp.trained_parameters().size(), 4u);
    EXPECT_EQ(ddp.bucket_plan().size(), 3u);
    for (int step = 0; step < 3; ++step) {
      const auto data = global_batch(step).data;
      reference->zero_grad();
      for (int r = 0; r < kRanks; ++r) {
        (reference->forward(data.narrow(0, r * 4, 4)) / kRanks).backward();
      }
      ddp.zero_grad();
      ddp.forward(data.narrow(0, rank * 4, 4)).backward();
      expect_close(model->layer->weight.grad(), reference->layer->weight.grad(), "layer.weight");
      expect_close(model->scale.grad(), reference->scale.grad(), "scale");
      expect_close(model->shift.grad(), reference->shift.grad(), "shift");
    }
  });
}

// A module with one of the return types of forward(). If `apart`, its result depends on no
// parameter that requires a gradient.
template <class Output>
struct ReturningImpl : torch::nn::Module {
  Output forward(const torch::Tensor& x, bool apart);
  torch::Tensor result(const torch::Tensor& x, bool apart) { return apart ? x * 2 : layer(x); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, 2));
};
using Pair = std::tuple<int, torch::Tensor>;
using ByName = std::map<std::string, torch::Tensor>;
using Perhaps = std::optional<std::vector<torch::Tensor>>;
using Ordered = torch::OrderedDict<std::string, torch::Tensor>;
using Dict = c10::Dict<std::string, torch::Tensor>;
using List = torch::List<torch::Tensor>;
static_assert(ddp::owns_tensors<Ordered>());
static_assert(!ddp::owns_tensors<Dict>() && !ddp::owns_tensors<List>());  // Copies share them.
template <>
Pair ReturningImpl<Pair>::forward(const torch::Tensor& x, bool apart) {
  return {3, result(x, apart)};
}
template <>
ByName ReturningImpl<ByName>::forward(const torch::Tensor& x, bool apart) {
  return {{"result", result(x, apart)}};
}
template <>
Perhaps ReturningImpl<Perhaps>::forward(const torch::Tensor& x, bool apart) {
  return std::vector{torch::Tensor(), result(x, apart)};
}
template <>
Ordered ReturningImpl<Ordered>::forward(const torch::Tensor& x, bool apart) {
  return {{"result", result(x, apart)}};
}
template <>
Dict ReturningImpl<Dict>::forward(const torch::Tensor& x, bool apart) {
  Dict by_name;
  by_name.insert("result", result(x, apart));
  return by_name;
}
template <>
List ReturningImpl<List>::forward(const torch::Tensor& x, bool apart) {
  return List({result(x, apart)});
}

torch::Tensor tensor_in(const Pair& pair) { return std::get<1>(pair); }
torch::Tensor tensor_in(const ByName& by_name) { return by_name.at("result"); }
torch::Tensor tensor_in(const Perhaps& perhaps) { return perhaps->back(); }
torch::Tensor tensor_in(const Ordered& ordered) { return ordered["result"]; }
torch::Tensor tensor_in(const Dict& by_name) { return by_name.at("result"); }
torch::Tensor tensor_in(const List& list) { return list.get(0); }

template <class Output>
void expect_tensors_are_found() {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto model = std::make_shared<ReturningImpl<Output>>();
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
    tensor_in(ddp.forward(x, communicator.rank() == Rank(1))).sum().backward();
    expect_close(model->layer->bias.grad(), torch::full({2}, 0.5), "bias");
  });
}

TEST(ReplicaSteps, TensorsAreFoundInWhatForwardReturns) {
  expect_tensors_are_found<Pair>();
  expect_tensors_are_found<ByName>();
  expect_tensors_are_found<Perhaps>();
  expect_tensors_are_found<Ordered>();
  expect_tensors_are_found<Dict>();
  expect_tensors_are_found<List>();
}

TEST(ReplicaSteps, TensorsThatCopiesShareAreNotChanged) {
  std::tuple<torch::Tensor, List, Dict> value(torch::ones({2}), List({torch::ones({2})}), Dict());
  ddp::for_each_tensor(value, [](torch::Tensor& tensor) { tensor = torch::Tensor(); });
  EXPECT_FALSE(std::get<0>(value).defined());
  EXPECT_TRUE(std::get<List>(value).get(0).defined());
}

// A table with a sparse gradient that no option names.
struct SparseInSecretImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    return torch::embedding(table, words, -1, false, /*sparse=*/true).sum();
  }
  torch::Tensor table = register_parameter("table", torch::ones({9, 2}));
};
TORCH_MODULE(SparseInSecret);

TEST(ReplicaSteps, ASparseGradientThatIsNotNamedIsToldToAllRanksAsWhatItIs) {
  run_ranks(kRanks, [](Communicator& communicator) {
    SparseInSecret model;
    DistributedDataParallel ddp(model, communicator);
    const auto words = torch::tensor({communicator.rank().value()});
    expect_contains(message_of<std::exception>([&] { ddp.forward(words).backward(); }),
                    "the gradient of 'table' is sparse; name it in the option");
  });
}

// Rank r has r + 1 batches in each epoch.
TEST(ReplicaSteps, UnevenEpochsAreFoundOutInTheStepThatNotAllHave) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model;
    model->b->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, communicator);
    int steps = 0;
    const auto train = [&](int epoch, int batches) {
      ddp.set_epoch(static_cast<std::uint64_t>(epoch));
      for (int batch = 0; batch < batches; ++batch, ++steps) {
        ddp.forward(torch::ones({1, kInputs}), true).sum().backward();
      }
    };
    train(0, 2);
    ddp.join([&] {
      for (int epoch = 1; epoch < 3; ++epoch) train(epoch, rank + 1);
    });
    train(3, 2);
    model->b->bias.set_requires_grad(true);  // The count of steps goes on.
    steps = 0;
    const auto text = message_of<Mismatch>([&] {
      for (int epoch = 4; epoch < 6; ++epoch) train(epoch, rank + 1);
    });
    EXPECT_EQ(steps, 1) << text;
    expect_contains(text,
                    "in step 10 rank 0 has begun epoch 5 (after step 9, and join() is not "
                    "active), rank 1 is still in epoch 4 (batches of each rank in it: 1, 2+). "
                    "Ranks must run equally many steps");
  });
}

// Some programs call ddp->forward(). If that would leave something out, they are told.
TEST(ReplicaSteps, ForwardOfTheModuleItselfIsNotedWhereItMatters) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    model->b->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, communicator);
    const auto x = torch::full({1, kInputs}, static_cast<float>(communicator.rank().value()));
    const auto step = [&] { ddp->forward(x, true).sum().backward(); };
    step();
    expect_close(model->a->weight.grad(), torch::full({2, kInputs}, 0.5), "a.weight");
    model->b->bias.set_requires_grad(true);
    // The rank that finds it out second is told by the other.
    expect_contains(message_of<Error>(step),
                    "parameter 'b.bias' was frozen, unfrozen or replaced since the last forward");
  });
  run_ranks(1, [](Communicator& communicator) {
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&] { ddp->forward(torch::ones({4, kInputs})).sum().backward(); };
    expect_contains(message_of<InvalidArgument>(step),
                    "Call ddp.forward(), not that of the module");
  });
}

TEST(ReplicaSteps, ARankThatDoesSomethingElseIsSaidToHaveRunOutOfBatchesPerhaps) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, communicator);
    const auto train = [&] {
      if (communicator.rank() == Rank(1)) ddp.forward(torch::ones({4, kInputs}));
      communicator.barrier().wait();  // Rank 0 calls this behind its training loop.
    };
    const auto text = message_of<Mismatch>(train);
    expect_contains(text, "called barrier");
    if (communicator.rank() == Rank(0)) return;
    expect_contains(text, "Perhaps a rank had no batch left. Ranks must run equally many steps");
  });
}

// Rank 1 waits for buffers.
TEST(ReplicaSteps, ARankThatHasLeftIsSaidToHaveRunOutOfStepsBeforeForwardToo) {
  run_ranks(kRanks, [](Communicator& job) {
    const auto group = job.new_group({0, 1});  // The group ends when a rank leaves.
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, *group);
    const auto step = [&] { ddp.forward(torch::ones({4, kInputs})).sum().backward(); };
    step();
    if (group->rank() == Rank(0)) return;
    expect_contains(message_of<PeerLost>(step),
                    "it left training after step 1, and this rank waits in step 2. Ranks must run");
  });
}

// Multiplies each gradient by its parameter.
class Weighed : public ParameterHook {
 public:
  std::string name() const override { return "weighed"; }
  void attach(Communicator&, std::span<const GradientDescription> gradients) override {
    ASSERT_EQ(gradients.size(), parameters().size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(gradients[i].name, parameters()[i].name);
    }
  }
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    last_seen = last_seen || bucket.is_last();
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const torch::Tensor& parameter = parameters()[bucket.gradients[i]].tensor;
      const View view = bucket.gradient_views[i];
      auto gradient = torch::from_blob(view.data, parameter.sizes(), parameter.options());
      gradient.mul_(parameter.detach());
    }
    return communicator.all_reduce(bucket.view, {.op = bucket.op});
  }
  bool last_seen = false;
};

// Passes buckets on unchanged.
class Around : public PlainReduction {
 public:
  explicit Around(std::shared_ptr<CommunicationHook> inner) : inner_(std::move(inner)) {}
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    return inner_->start(communicator, bucket);
  }
  CommunicationHook* inner() const override { return inner_.get(); }

 private:
  std::shared_ptr<CommunicationHook> inner_;
};

TEST(ReplicaSteps, AHookSeesBucketsGradientsAndParameters) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::Linear model(kInputs, 1);
    model->bias.set_requires_grad(false);
    const auto hook = std::make_shared<Weighed>();
    DistributedDataParallel ddp(model, communicator,
                                {.communication_hook = std::make_shared<Around>(hook)});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, kInputs})).sum().backward();
      EXPECT_TRUE(hook->last_seen);
      expect_close(model->weight.grad(), model->weight.detach(), "weight");
      if (step > 0) expect_close(model->bias.grad(), model->bias.detach(), "bias");
      model->bias.set_requires_grad(true);
    }
  });
}

}  // namespace
}  // namespace stretto

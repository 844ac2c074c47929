// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/distributed_data_parallel.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/own_timeout.h"
#include "tests/support/torch_models.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// LikeOneProcess.* shows the same with many models whose gradients are cleared.
TEST(DistributedDataParallel, TrainsLikeOneProcessWhenGradientsAreReplaced) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net();
    torch::optim::SGD reference_optimizer(reference->parameters(),
                                          torch::optim::SGDOptions(0.1).momentum(0.9));
    // Rank 1 has other initial values, which rank 0's replace.
    Net model = net(static_cast<std::uint64_t>(rank) + 1);
    DistributedDataParallel ddp(model, communicator, small_buckets());
    EXPECT_GT(ddp.bucket_plan().size(), 2u);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      const Batch batch = global_batch(step);
      reference_optimizer.zero_grad();
      loss_of(*reference, batch).backward();
      reference_optimizer.step();

      for (auto& parameter : model->parameters()) {
        if (parameter.requires_grad()) parameter.mutable_grad() = torch::zeros_like(parameter);
      }
      loss_of(ddp, part(batch, rank)).backward();
      optimizer.step();
      EXPECT_NO_THROW(ddp.verify_replicas());
    }
    expect_equal_parameters(*model, *reference);
  });
}

TEST(DistributedDataParallel, GradientsLiveInTheBuckets) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.rebuild_buckets = false});
    loss_of(ddp, global_batch(0)).backward();
    const torch::Tensor before = model->first->weight.grad();
    model->zero_grad(false);
    loss_of(ddp, global_batch(1)).backward();
    EXPECT_TRUE(before.is_same(model->first->weight.grad()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(before.data_ptr()) % 64, 0u);
    model->zero_grad();
    EXPECT_FALSE(model->first->weight.grad().defined());
    loss_of(ddp, global_batch(2)).backward();
    EXPECT_TRUE(before.is_same(model->first->weight.grad()));
  });
}

TEST(DistributedDataParallel, GradientsFollowTheStridesOfChannelsLastParameters) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    const auto build = [] {
      return with_seed(5, [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)); });
    };
    torch::nn::Conv2d reference = build();
    torch::nn::Conv2d model = build();
    model->weight.set_data(model->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    const auto data = with_seed(6, [] { return torch::randn({kRanks, 3, 8, 8}); });
    DistributedDataParallel ddp(model, communicator);
    for (int step = 0; step < 2; ++step) {
      reference->zero_grad();
      model->zero_grad();
      reference->forward(data).pow(2).mean().backward();
      ddp.forward(data.narrow(0, rank, 1)).pow(2).mean().backward();
      EXPECT_EQ(model->weight.grad().strides(), model->weight.strides());
      expect_close(model->weight.grad(), reference->weight.grad(), "weight");
    }
  });
}

TEST(DistributedDataParallel, BuffersOfRankZeroAreEveryones) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    torch::nn::BatchNorm1d model(3);
    DistributedDataParallel ddp(model, communicator);
    const auto own_data = torch::full({4, 3}, static_cast<float>(rank + 1));
    for (int step = 0; step < 3; ++step) ddp.forward(own_data).sum().backward();
    // The forward pass after the broadcast has updated the mean with this rank's data.
    auto mean = model->running_mean.clone();
    torch::nn::BatchNorm1d reference(3);
    for (int step = 0; step < 3; ++step) {
      reference->forward(torch::full({4, 3}, step < 2 ? 1.0f : static_cast<float>(rank + 1)));
    }
    expect_close(mean, reference->running_mean, "running mean");
    EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 3);
    model->eval();
    (void)ddp.forward(own_data);  // Nothing is communicated, and nothing changes.
    expect_close(model->running_mean, mean, "running mean after evaluation");
  });
}

// Changes rank 1's model, and expects a Mismatch with `text` on all ranks.
void expect_refused(const std::function<void(Net&)>& change, const std::string& text,
                    DistributedDataParallelOptions rank_one = {}) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    Net model = net();
    if (rank == 1) change(model);
    const auto construct = [&] {
      DistributedDataParallel ddp(model, communicator,
                                  rank == 1 ? rank_one : DistributedDataParallelOptions());
    };
    expect_contains(message_of<Mismatch>(construct), text);
  });
}

TEST(DistributedDataParallel, RefusesOtherModelsAndOptionsOnOtherRanks) {
  expect_refused([](Net& model) { model = Net(9); },
                 "parameter 'first.weight' has shape [8, 6] on rank 0; [9, 6] on rank 1");
  expect_refused([](Net& model) { model->to(torch::kDouble); },
                 "parameter 'scale' has dtype Float on rank 0; Double on rank 1");
  expect_refused([](Net& model) { model->last->bias.set_requires_grad(false); },
                 "parameter 'last.bias' has requires_grad true on rank 0; false on rank 1");
  expect_refused(
      [](Net& model) { model->last->weight.set_data(model->last->weight.t().contiguous().t()); },
      "parameter 'last.weight' has strides [8, 1] on rank 0; [1, 3] on rank 1");
  expect_refused([](Net& model) { model->register_buffer("extra", torch::zeros({2})); },
                 "is nothing on rank 0; buffer 'extra' on rank 1");
  expect_refused([](Net&) {}, "has bucket_bytes 1048576, 26214400 on rank 0; 64, 256",
                 small_buckets());
}

TEST(DistributedDataParallel, RefusesModulesThatItCannotTrain) {
  run_ranks(1, [](Communicator& communicator) {
    const auto refuse = [&](torch::nn::Linear layer) {
      return message_of<InvalidArgument>([&] { DistributedDataParallel ddp(layer, communicator); });
    };
    torch::nn::Linear frozen(2, 2);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    expect_contains(refuse(frozen), "no parameter that requires grad");
    torch::nn::Linear complex(2, 2);
    complex->to(torch::kComplexHalf);
    expect_contains(refuse(complex), "parameter 'weight': tensors of type ComplexHalf");
  });
}

TEST(DistributedDataParallel, FrozenParametersMayHaveTypesThatCannotBeReduced) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::Linear layer(2, 2);
    layer->register_parameter("scale", torch::zeros({3}, torch::kComplexHalf), false);
    DistributedDataParallel ddp(layer, communicator);
    ddp.forward(torch::ones({1, 2}) * communicator.rank().value()).sum().backward();
    expect_close(layer->weight.grad(), torch::full({2, 2}, (kRanks - 1) / 2.0), "gradient");
  });
}

TEST(DistributedDataParallel, AnUnusedParameterIsNamedByBackwardOnAllRanks) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](bool both) {
      model->zero_grad();
      ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
    };
    const auto text = message_of<InvalidArgument>([&] { step(communicator.rank() == Rank(0)); });
    expect_contains(text,
                    "2 parameters got no gradient on rank 1: b.weight, b.bias; used on rank 0");
    step(true);  // The failure ended that step, but not the job.
    expect_close(model->b->bias.grad(), torch::ones({2}), "gradient of the next step");
  });
}

TEST(DistributedDataParallel, ItsTimeoutHoldsForBuffers) {
  OwnTimeout timeout;
  run_ranks(kRanks, [&](Communicator& communicator) {
    torch::nn::BatchNorm1d model(kInputs);
    DistributedDataParallel ddp(model, communicator, {.timeout = OwnTimeout::kTimeout});
    timeout.expect_of(communicator, [&] { ddp.forward(torch::ones({4, kInputs})); });
  });
}

// They are told at once, although rank 1 keeps its model and communicator and does nothing more.
TEST(DistributedDataParallel, APassThatThrowsIsToldToTheOtherRanks) {
  std::atomic<int> told{0};
  run_ranks(3, [&](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const Batch batch = global_batch(0);
    const TimePoint begin = Clock::now();
    if (communicator.rank() != Rank(1)) {
      const auto step = [&] { loss_of(ddp, part(batch, 0)).backward(); };
      const std::string text = message_of<Aborted>(step);
      expect_contains(text, "rank 1 aborted: an exception ended its step when ");
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15)) << "not by a timeout";
      ++told;
      return;
    }
    model->shared->weight.register_hook(
        [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("user's error"); });
    const auto step = [&] { loss_of(ddp, part(batch, 1)).backward(); };
    EXPECT_EQ(message_of<std::runtime_error>(step), "user's error");
    while (told < 2) std::this_thread::yield();
    expect_contains(message_of<Aborted>([&] { ddp.forward(batch.data); }),
                    "an exception ended this rank's step");
  });
}

TEST(DistributedDataParallel, APassThatThrowsIsExplainedByTheNextForward) {
  run_ranks(1, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator);
    const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
    auto hidden = ddp.forward(x * 2, true);
    model->a->weight.register_hook(
        [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("user's error"); });
    EXPECT_EQ(message_of<std::runtime_error>([&] { hidden.sum().backward(); }), "user's error");
    expect_contains(message_of<Aborted>([&] { ddp.forward(x, true); }), "an exception ended");
  });
}

TEST(DistributedDataParallel, ReentrantBackwardIsOneStep) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Checkpointed reference = seeded<Checkpointed>(3), model = seeded<Checkpointed>(3);
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {1}});
    for (int step = 0; step < 3; ++step) {
      const auto data = global_batch(step).data;
      reference->zero_grad();
      reference->plain(data).backward();
      model->zero_grad();
      ddp.forward(data.narrow(0, rank * 4, 4)).backward();
      expect_gradients_of(*reference, *model);
    }
  });
}

TEST(DistributedDataParallel, SecondDerivativesAreRefused) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    auto loss = loss_of(ddp, global_batch(0));
    expect_contains(message_of<InvalidArgument>(
                        [&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
                    "create_graph");
  });
}

TEST(DistributedDataParallel, DivergedReplicasAreNamed) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    EXPECT_NO_THROW(ddp.verify_replicas());
    const std::uint64_t before = ddp.parameter_hash();
    if (communicator.rank() == Rank(1)) {
      const torch::NoGradGuard no_grad;
      model->last->bias[1] += 1e-6;
      EXPECT_NE(ddp.parameter_hash(), before);
    }
    expect_contains(message_of<Mismatch>([&] { ddp.verify_replicas(); }),
                    "parameter 'last.bias' on rank 1 differs from rank 0");
  });
}

TEST(DistributedDataParallel, TakesPointersAndReferencesAndLeavesNoHooksBehind) {
  run_ranks(1, [](Communicator& communicator) {
    const auto pointer = std::make_shared<NetImpl>();
    { DistributedDataParallel ddp(pointer, communicator); }
    loss_of(*pointer, global_batch(0)).backward();  // This would call into the destroyed object.
    NetImpl& reference = *pointer;
    DistributedDataParallel ddp(reference, communicator);
    loss_of(ddp, global_batch(0)).backward();
    EXPECT_EQ(ddp.module().get(), pointer.get());
  });
}

// A program may have to write out the type, for example of a member.
struct Trainer {
  DistributedDataParallel<Net> ddp;
  std::optional<DistributedDataParallel<NetImpl>> of_module = std::nullopt;
};
torch::Tensor loss_by_holder(DistributedDataParallel<Net>& ddp, const Batch& batch) {
  return loss_of(ddp, batch);
}
torch::Tensor loss_by_module(DistributedDataParallel<NetImpl>& ddp, const Batch& batch) {
  return loss_of(ddp, batch);
}

TEST(DistributedDataParallel, ItsTypeMayNameTheHolderOrTheModule) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const Batch batch = part(global_batch(0), communicator.rank().value());
    Net model = net(), reference = net();
    loss_of(*reference, global_batch(0)).backward();
    DistributedDataParallel deduced(model, communicator);
    static_assert(std::is_same_v<decltype(deduced), DistributedDataParallel<Net>>);
    loss_by_holder(deduced, batch).backward();
    expect_gradients_of(*reference, deduced);
    deduced.zero_grad();
    loss_by_module(deduced, batch).backward();
    expect_gradients_of(*reference, deduced);
    Trainer trainer{.ddp = deduced, .of_module = deduced};
    trainer.ddp.zero_grad();
    trainer.of_module->forward(batch.data);
    loss_of(trainer.ddp, batch).backward();
    expect_gradients_of(*reference, trainer.ddp);
    EXPECT_EQ(trainer.ddp->first.get(), model->first.get());
    Net other = net(), copy = net(5);
    DistributedDataParallel<Net> named(other, communicator, small_buckets());
    DistributedDataParallel<Net> of_pointer(DistributedDataParallel(net().ptr(), communicator));
    loss_of(named, batch).backward();
    expect_gradients_of(*reference, named);
    std::stringstream file;
    torch::save(named, file);
    torch::load(copy, file);
    expect_equal_parameters(*copy, *other);
    torch::nn::Sequential whole(named, torch::nn::Identity());
    EXPECT_EQ(whole->forward(batch.data).size(1), 3);
  });
}

TEST(DistributedDataParallel, GradientsOutliveIt) {
  torch::Tensor gradient;
  run_ranks(1, [&](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator);
    loss_of(ddp, global_batch(0)).backward();
    gradient = model->last->bias.grad();
  });
  EXPECT_TRUE(gradient.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace stretto

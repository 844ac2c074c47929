// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/hook.h"
#include "tests/support/torch_models.h"

// Unusual programs must get correct numbers, or an error that explains the problem.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Some parameters have no elements, before, between and behind the others.
struct HollowImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return (layer(x).sum() + none.sum() + flat.sum() + last.sum()).pow(2);
  }
  torch::Tensor none = register_parameter("none", torch::empty({0}));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, 2));
  torch::Tensor flat = register_parameter("flat", torch::empty({3, 0, 2}));
  torch::Tensor last = register_parameter("last", torch::empty({0, 5}));
};
TORCH_MODULE(Hollow);

// One backward pass goes through two models, and each rank uses another part of them. So their
// buckets do not fill in the same order on all ranks.
TEST(UnusualPrograms, ModelsThatRanksUseDifferentlyInOnePassNeedCommunicatorsOfTheirOwn) {
  std::string texts;
  std::mutex mutex;
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    const auto step = [&](Communicator& second) {
      Branches one = seeded<Branches>(1);
      Branches two = seeded<Branches>(2);
      DistributedDataParallel first_half(one, communicator,
                                         {.bucket_bytes = {1}, .find_unused_parameters = true});
      DistributedDataParallel second_half(two, second, {.find_unused_parameters = true});
      const auto x = part(global_batch(0), rank).data;
      (first_half.forward(x, rank == 0).sum() + second_half.forward(x, rank == 1).sum()).backward();
      for (const Branches& model : {one, two}) {
        expect_close(model->a->bias.grad(), torch::full({2}, 4.0), "a.bias");
        expect_close(model->b->bias.grad(), torch::full({2}, 2.0), "b.bias");
      }
    };
    step(*communicator.split({.color = 0}));
    const std::string text = message_of<Error>([&] { step(communicator); });
    const std::lock_guard lock(mutex);
    texts += text;
  });
  expect_contains(texts, "give each of them a communicator of its own, by split()");
}

// An error in the step of one model does not affect the other.
TEST(UnusualPrograms, AModelThatIsRefusedLeavesOthersOfThePassAsTheyAre) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    const auto own = communicator.split({.color = 0}), other = communicator.split({.color = 0});
    Branches one = seeded<Branches>(1);
    Branches two = seeded<Branches>(2);
    DistributedDataParallel first(one, *own), second(two, *other);
    const auto step = [&](bool both) {
      first.zero_grad();
      second.zero_grad();
      const auto x = part(global_batch(0), rank).data;
      (first.forward(x, true).sum() + second.forward(x, both).sum()).backward();
    };
    step(true);
    expect_contains(message_of<InvalidArgument>([&] { step(rank == 0); }), "b.weight");
    EXPECT_NO_THROW(step(true));
    expect_close(one->b->bias.grad(), torch::full({2}, 4.0), "b.bias");
    expect_close(two->b->bias.grad(), torch::full({2}, 4.0), "b.bias");
  });
}

TEST(UnusualPrograms, ParametersWithoutElementsMayBeCompressed) {
  run_ranks(3, [](Communicator& communicator) {
    for (const CompressedExchange exchange :
         {CompressedExchange::gather, CompressedExchange::divide}) {
      Hollow model = seeded<Hollow>(2);
      DistributedDataParallel ddp(
          model, communicator,
          {.communication_hook = std::make_shared<CompressedReduction>(CompressionOptions{
               .codec = top_k({.density = 1}), .min_elements = 0, .exchange = exchange})});
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        EXPECT_NO_THROW(ddp.forward(torch::ones({2, kInputs})).backward());
        EXPECT_EQ(model->none.grad().numel(), 0);
        EXPECT_NE(model->layer->bias.grad()[0].item<float>(), 0);
      }
    }
  });
}

TEST(UnusualPrograms, ForwardAndBackwardMayRunOnDifferentThreads) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    for (int step = 0; step < 5; ++step) {
      reference->zero_grad();
      loss_of(*reference, global_batch(step)).backward();
      ddp.zero_grad();
      const auto loss = loss_of(ddp, part(global_batch(step), rank));
      std::thread([&] { loss.backward(); }).join();
      expect_gradients_of(*reference, ddp);
    }
  });
}

// A checkpoint of the sum of two tensors.
struct CheckpointOfSum : torch::autograd::Function<CheckpointOfSum> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& y, torch::nn::Linear* module) {
    return Checkpoint::forward(context, x + y, module);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::Tensor of_sum = Checkpoint::backward(context, gradients).front();
    return {of_sum, of_sum, torch::Tensor()};
  }
};

// Two checkpoints hold all parameters, and both take the same tensor.
struct SkippingImpl : torch::nn::Module {
  std::vector<torch::Tensor> forward(const torch::Tensor& skipped, bool returns_both) {
    auto output = CheckpointOfSum::apply(Checkpoint::apply(skipped, &a), skipped, &b);
    if (returns_both) return {output, skipped};
    return {output};
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kInputs, kInputs));
};
TORCH_MODULE(Skipping);

// Backward reaches that tensor after the step has ended in the inner pass of a checkpoint.
TEST(UnusualPrograms, ATensorThatSeveralCheckpointsTakeBeginsNoOtherStep) {
  for (const bool returns_both : {false, true}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      Skipping model;
      DistributedDataParallel ddp(model, communicator);
      const auto x = torch::ones({1, kInputs}).set_requires_grad(true);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ddp.zero_grad();
        const auto outputs = ddp.forward(x * 2, returns_both);
        (outputs.front().sum() + outputs.back().sum()).backward();
        EXPECT_EQ(ddp.last_step().step, step);
        expect_close(model->b->bias.grad(), torch::full({kInputs}, returns_both ? 1.0 : 2.0), "b");
      }
    });
  }
}

// Autograd keeps the node of a leaf, and hooks on it, as long as a graph with it exists.
TEST(UnusualPrograms, ALeafThatACheckpointTakesBeginsNoStepInsideNoSync) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Skipping model;
    DistributedDataParallel ddp(model, communicator);
    const auto leaf = torch::ones({1, kInputs}).set_requires_grad(true);
    const auto loss = [&] { return ddp.forward(leaf, false).front().sum(); };
    const auto kept = loss();
    kept.backward();
    EXPECT_EQ(ddp.last_step().step, 1u);
    const auto guard = ddp.no_sync();
    loss().backward();
    EXPECT_EQ(ddp.last_step().step, 1u);
  });
}

// If the hook calls forward(), the inner pass is not one of several. If the hook is on a leaf,
// nothing comes behind the inner pass.
TEST(UnusualPrograms, AStepInsideOfAHookHasEndedWhenItsBackwardReturns) {
  for (const bool calls_forward : {true, false}) {
    run_ranks(kRanks, [&](Communicator& communicator, int rank) {
      torch::nn::Linear model(kInputs, 2);
      DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
      const auto forward = [&] {
        return ddp.forward(torch::full({1, kInputs}, static_cast<float>(rank))).sum();
      };
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ddp.zero_grad();
        torch::Tensor loss = calls_forward ? torch::Tensor() : forward();
        const auto leaf = torch::ones({1}).set_requires_grad(true);
        const auto around = calls_forward ? leaf * 2 : leaf;
        around.register_hook([&](const torch::Tensor&) {
          const torch::AutoGradMode enable(true);
          if (calls_forward) loss = forward();
          loss.backward();
          EXPECT_EQ(ddp.last_step().step, step);
          expect_close(model->weight.grad(), torch::full({2, kInputs}, 0.5f), "mean");
        });
        around.sum().backward();
        EXPECT_EQ(ddp.last_step().step, step);
      }
    });
  }
}

TEST(UnusualPrograms, LbfgsStepsByTheMeanLoss) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net(), reference = net();
    DistributedDataParallel ddp(model, communicator);
    const auto settings =
        torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe");
    torch::optim::LBFGS optimizer(ddp.parameters(), settings);
    torch::optim::LBFGS alone(reference->parameters(), settings);
    optimizer.step([&] {
      optimizer.zero_grad();
      const auto loss = loss_of(ddp, part(global_batch(0), communicator.rank().value()));
      loss.backward();
      torch::Tensor mean = loss.detach().clone();
      communicator.all_reduce(mean, {.op = ReduceOp::mean}).wait();
      return mean;
    });
    alone.step([&] {
      alone.zero_grad();
      const auto loss = loss_of(*reference, global_batch(0));
      loss.backward();
      return loss;
    });
    ddp.verify_replicas();
    expect_equal_parameters(*model, *reference);
  });
}

TEST(UnusualPrograms, AnOutputThatOutlivesItsModelIsNoWayBack) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    torch::Tensor loss;
    {
      DistributedDataParallel ddp(model, communicator);
      loss = loss_of(ddp, part(global_batch(0), communicator.rank().value()));
    }
    expect_contains(message_of<InvalidArgument>([&] { loss.backward(); }),
                    "it must live until backward() has returned");
    EXPECT_FALSE(model->first->weight.grad().defined());
  });
}

TEST(UnusualPrograms, ACloneIsAModelOfItsOwn) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const auto rank = static_cast<float>(communicator.rank().value());
    torch::nn::Linear model = with_seed(1, [] { return torch::nn::Linear(kInputs, 2); });
    DistributedDataParallel ddp(model, communicator);
    const auto step = [&](auto& trained, float value) {
      trained.zero_grad();
      trained.forward(torch::full({1, kInputs}, value)).sum().backward();
    };
    step(ddp, rank);
    expect_close(model->weight.grad(), torch::full({2, kInputs}, 0.5f), "mean");
    const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone());
    ASSERT_NE(clone, nullptr);
    step(*clone, rank + 5);  // The clone belongs to no replica.
    expect_close(clone->weight.grad(), torch::full({2, kInputs}, rank + 5), "its own");
    expect_close(model->weight.grad(), torch::full({2, kInputs}, 0.5f), "as it was");
    DistributedDataParallel other(clone, communicator);
    step(other, rank + 1);
    step(ddp, rank + 2);
    expect_close(clone->weight.grad(), torch::full({2, kInputs}, 1.5f), "mean of the clones");
    expect_close(model->weight.grad(), torch::full({2, kInputs}, 2.5f), "mean");
  });
}

TEST(UnusualPrograms, HooksOfTheProgramSeeTheGradientOfTheirRank) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Branches model = seeded<Branches>(1);
    DistributedDataParallel ddp(model, communicator);
    float seen = -1;
    model->a->bias.register_hook([&](const torch::Tensor& gradient) {
      seen = gradient[0].item<float>();
      return gradient * (rank + 1);
    });
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad(step != 1);
      ddp.forward(torch::ones({2, kInputs}), true).sum().backward();
      EXPECT_EQ(seen, 2.0f);
      expect_close(model->a->bias.grad(), torch::full({2}, 3.0f), "the mean of 2 and 4");
    }
  });
}

// A module whose forward() returns a value in an argument, too.
struct CountingImpl : torch::nn::Module {
  template <class Parts>
  torch::Tensor forward(Parts&& parts) {
    ++parts.second;
    return layer(parts.first).sum();
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kInputs, 2));
};
TORCH_MODULE(Counting);

TEST(UnusualPrograms, ArgumentsThatNeedNoConversionAreThoseOfTheCaller) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Counting model;
    DistributedDataParallel ddp(model, communicator);
    std::pair<torch::Tensor, int> parts(torch::ones({1, kInputs}), 0);
    for (int step = 0; step < 3; ++step) ddp.forward(parts).backward();
    EXPECT_EQ(parts.second, 3);
  });
}

// Rank 1 knows at once that it has nothing to train, and the others would wait for it.
TEST(UnusualPrograms, AModelThatOnlyOneRankCannotTrainIsToldToAll) {
  run_ranks(3, [](Communicator& communicator) {
    const bool is_other = communicator.rank() == Rank(1);
    torch::nn::Linear model(2, 2);
    if (is_other) {
      for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
    }
    std::string text;
    try {
      const DistributedDataParallel ddp(model, communicator);
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(is_other);
      text = error.what();
    } catch (const Mismatch& error) {
      EXPECT_FALSE(is_other);
      text = error.what();
      expect_contains(text, "refusal none on ranks 0, 2; ");
      expect_contains(text, "on rank 1");
    }
    expect_contains(text, "the module has no parameter that requires grad");
    for (auto& parameter : model->parameters()) parameter.set_requires_grad(true);
    EXPECT_NO_THROW(DistributedDataParallel(model, communicator)) << "the communicator is whole";
  });
}

// Cleaning up after a failed pass must not hide the cause, or end the program.
TEST(UnusualPrograms, AFailureBehindTheFailureOfAPassIsNotTheOneThatIsThrown) {
  bool cleaned_up = false;
  std::future<void> over;
  const auto x = torch::ones({2}).set_requires_grad(true);
  const auto y = x * 2;
  y.register_hook([&](const torch::Tensor&) -> torch::Tensor {
    const auto clean_up = [&] {
      cleaned_up = true;
      throw std::runtime_error("no memory");
    };
    over = ddp::call_at_end_of_backward([] {}, clean_up);
    throw std::logic_error("in backward");
  });
  EXPECT_EQ(message_of<std::logic_error>([&] { y.sum().backward(); }), "in backward");
  over.wait();
  EXPECT_TRUE(cleaned_up);
}

}  // namespace
}  // namespace stretto

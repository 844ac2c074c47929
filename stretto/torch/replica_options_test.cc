// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/reducer/bucket_size.h"
#include "stretto/torch/buffer_hook.h"
#include "stretto/torch/distributed_data_parallel.h"
#include "stretto/torch/joinable.h"
#include "tests/support/at_the_end.h"
#include "tests/support/own_timeout.h"
#include "tests/support/torch_models.h"

// What the options of DistributedDataParallel change, and what DistributedDataParallel tells about
// itself.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

TEST(ReplicaOptions, TheMeanMayBeDividedBeforeTheSum) {
  for (const MeanDivision division : {MeanDivision::before_sum, MeanDivision::half_each}) {
    run_ranks(kRanks, [&](Communicator& communicator) {
      DistributedDataParallelOptions options = small_buckets();
      options.mean_division = division;
      Net reference = net(), model = net();
      DistributedDataParallel ddp(model, communicator, options);
      for (int step = 0; step < 3; ++step) {
        expect_step_like_one_process(ddp, reference, communicator.rank().value(), step);
      }
    });
  }
}

TEST(ReplicaOptions, ItMayBePartOfASequential) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    torch::nn::Sequential inner(torch::nn::Linear(3, 3), torch::nn::ReLU());
    DistributedDataParallel inner_ddp(inner, communicator);
    torch::nn::Sequential whole(torch::nn::Identity(), ddp);
    whole->push_back(torch::nn::Identity());
    EXPECT_EQ(
        whole->named_parameters().keys(),
        (std::vector<std::string>{"1.module.scale", "1.module.first.weight", "1.module.first.bias",
                                  "1.module.shared.weight", "1.module.shared.bias",
                                  "1.module.last.weight", "1.module.last.bias"}));
    const Batch batch = global_batch(0);
    loss_of(*reference, batch).backward();
    loss_of(*whole, part(batch, rank)).backward();
    expect_close(model->first->weight.grad(), reference->first->weight.grad(), "first.weight");
    whole->push_back(inner_ddp);
    EXPECT_EQ(whole->forward(batch.data).size(1), 3);
  });
}

// A language model whose output layer is to use the embedding's weight.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(bool tied) {
    if (tied) head->weight = tokens->weight;
  }
  torch::Tensor forward(const torch::Tensor& words) { return head(tokens(words)); }
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(5, kInputs));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kInputs, 5));
};
TORCH_MODULE(Tied);

TEST(ReplicaOptions, WeightsThatAreTiedByAssignmentAreExplained) {
  run_ranks(1, [](Communicator& communicator) {
    Tied tied(true);
    const auto text =
        message_of<InvalidArgument>([&] { DistributedDataParallel ddp(tied, communicator); });
    expect_contains(text, "layer 'head' computes with another weight than the one that it has");
    expect_contains(text, "name 'head.weight' in the option parameters_to_ignore");
    DistributedDataParallel ddp(tied, communicator, {.parameters_to_ignore = {"head.weight"}});
    ddp.forward(torch::tensor({1, 2})).sum().backward();
    Tied untied(false);
    EXPECT_NO_THROW(DistributedDataParallel(untied, communicator));
    // A model that normalises its weight in each forward pass leaves it like this before the next
    // wrap.
    untied->head->weight = untied->head->weight / 2;
    EXPECT_NO_THROW(DistributedDataParallel(untied, communicator));
  });
}

TEST(ReplicaOptions, DelayedParametersTravelLastAndGetTheSameGradients) {
  run_ranks(kRanks, [](Communicator& communicator) {
    DistributedDataParallelOptions options = small_buckets();
    options.delayed_parameters = {"last.weight", "last.bias"};
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, options);
    for (int step = 0; step < 3; ++step) {
      expect_step_like_one_process(ddp, reference, communicator.rank().value(), step);
      const std::vector<std::size_t> last = ddp.bucket_plan().back().gradients;
      for (const std::size_t index : last) {
        EXPECT_EQ(ddp.trained_parameters()[index].name.substr(0, 5), "last.");
      }
    }
    options.delayed_parameters = {"lost.weight"};
    Net other = net();
    expect_contains(message_of<InvalidArgument>(
                        [&] { DistributedDataParallel refused(other, communicator, options); }),
                    "delayed_parameters names 'lost.weight', which is no parameter");
  });
}

// A model whose last parameter has two names, of which the first is listed.
struct LastTwiceImpl : torch::nn::Module {
  torch::Tensor first = register_parameter("first", torch::ones({64}));
  torch::Tensor last = register_parameter("last", torch::ones({64}));
  torch::Tensor again = register_parameter("again", last);
};
TORCH_MODULE(LastTwice);

TEST(ReplicaOptions, DelayedParametersMayBeNamedByAnyOfTheirNames) {
  run_ranks(1, [](Communicator& communicator) {
    for (const char* const name : {"last", "again"}) {
      LastTwice model;
      DistributedDataParallelOptions options = small_buckets();
      options.delayed_parameters = {name};
      const DistributedDataParallel ddp(model, communicator, options);
      EXPECT_EQ(ddp.bucket_plan().back().gradients, std::vector<std::size_t>{1}) << name;
    }
  });
}

// Returns the running mean after a forward pass before which `hook` ran, plus 100 times the number
// of batches tracked. Before the hook, on rank r, the mean was r + 1 and the number r.
float mean_after_forward(Communicator& communicator, std::shared_ptr<BufferHook> hook) {
  torch::nn::BatchNorm1d model(torch::nn::BatchNormOptions(2).momentum(0.0));
  DistributedDataParallel ddp(model, communicator, {.buffer_hook = std::move(hook)});
  {
    const torch::NoGradGuard no_grad;
    model->running_mean.fill_(static_cast<float>(communicator.rank().value() + 1));
    model->num_batches_tracked.fill_(communicator.rank().value());
  }
  ddp.forward(torch::ones({4, 2})).sum().backward();
  EXPECT_TRUE(model->running_mean[0].equal(model->running_mean[1]));
  return model->running_mean[0].item<float>() +
         100.0f * static_cast<float>(model->num_batches_tracked.item<std::int64_t>());
}

// Doubles the buffers on each rank: a program's own hook may do anything.
struct Doubling : BufferHook {
  std::string name() const override { return "doubling"; }
  void run(const BufferCall& call) override {
    EXPECT_EQ(call.buffers.size(), 3u);
    EXPECT_FALSE(call.leader.has_value());
    for (const auto& buffer : call.buffers) torch::Tensor(buffer.tensor).mul_(2);
  }
};

TEST(ReplicaOptions, BuffersBecomeEqualAsChosen) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    EXPECT_EQ(mean_after_forward(communicator, nullptr), 1.0f + 100);
    EXPECT_EQ(mean_after_forward(communicator, std::make_shared<BuffersOfRank>(2)), 3.0f + 300);
    EXPECT_EQ(mean_after_forward(communicator, std::make_shared<MeanOfBuffers>()), 2.0f + 100);
    EXPECT_EQ(mean_after_forward(communicator, std::make_shared<Doubling>()),
              static_cast<float>(2 * (rank + 1) + 100 * (2 * rank + 1)));
    torch::nn::BatchNorm1d model(2);
    const Rank root = rank == 1 ? 1 : 0;
    const auto build = [&] {
      DistributedDataParallel ddp(model, communicator,
                                  {.buffer_hook = std::make_shared<BuffersOfRank>(root)});
    };
    expect_contains(message_of<Mismatch>(build),
                    "buffer_hook rank 0 on ranks 0, 2; rank 1 on rank 1");
    const DistributedDataParallelOptions neither{.broadcast_buffers = false,
                                                 .buffer_hook = std::make_shared<MeanOfBuffers>()};
    const auto refused = [&] { DistributedDataParallel(model, communicator, neither); };
    EXPECT_THROW(refused(), Error);
  });
}

// Adds 1 to each buffer in a way that autograd sees, and then runs MeanOfBuffers.
struct OneMoreThanTheMean : MeanOfBuffers {
  OneMoreThanTheMean() : MeanOfBuffers(BufferHookLocation::after_forward) {}
  void run(const BufferCall& call) override {
    for (const auto& buffer : call.buffers) torch::Tensor(buffer.tensor).add_(1);
    MeanOfBuffers::run(call);
  }
};

// On rank r each forward pass sets the running mean to r, from another value.
TEST(ReplicaOptions, BuffersMayBecomeEqualAfterForward) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    constexpr auto kAfter = BufferHookLocation::after_forward;
    const auto mean_after = [&](std::shared_ptr<BufferHook> hook) {
      torch::nn::BatchNorm1d model(torch::nn::BatchNormOptions(2).momentum(1.0));
      DistributedDataParallel ddp(model, communicator, {.buffer_hook = std::move(hook)});
      const auto x = torch::full({4, 2}, static_cast<float>(rank));
      {
        const auto guard = ddp.no_sync();
        (void)ddp.forward(x);
        EXPECT_EQ(model->running_mean[0].item<float>(), static_cast<float>(rank));
      }
      ddp.forward(x).sum().backward();
      EXPECT_TRUE(model->bias.grad().equal(torch::full({2}, 4.0f)));
      return model->running_mean[0].item<float>();
    };
    EXPECT_EQ(mean_after(std::make_shared<BuffersOfRank>(2)), static_cast<float>(rank)) << "before";
    EXPECT_EQ(mean_after(std::make_shared<BuffersOfRank>(2, kAfter)), 2.0f);
    EXPECT_EQ(mean_after(std::make_shared<MeanOfBuffers>(kAfter)), 1.0f);
    EXPECT_EQ(mean_after(std::make_shared<OneMoreThanTheMean>()), 2.0f);
    torch::nn::BatchNorm1d model(2);
    const auto location = rank == 1 ? kAfter : BufferHookLocation::before_forward;
    const auto build = [&] {
      DistributedDataParallel ddp(model, communicator,
                                  {.buffer_hook = std::make_shared<BuffersOfRank>(0, location)});
    };
    expect_contains(message_of<Mismatch>(build),
                    "buffer_hook rank 0 on ranks 0, 2; rank 0 after forward on rank 1");
  });
}

// When the hook runs, a layer has saved the buffers for its backward pass. Autograd must not notice
// the change.
TEST(ReplicaOptions, ConvertedBuffersMayBecomeEqualAfterForward) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    torch::nn::BatchNorm1d model(torch::nn::BatchNormOptions(2).momentum(1.0));
    DistributedDataParallel ddp(
        model, communicator,
        {.buffer_hook = std::make_shared<MeanOfBuffers>(BufferHookLocation::after_forward)});
    ddp.to(torch::kDouble);
    const auto x = torch::full({4, 2}, static_cast<double>(rank), torch::kDouble);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(model->running_mean[0].item<double>(), 0.5);
    EXPECT_TRUE(model->bias.grad().equal(torch::full({2}, 4.0, torch::kDouble)));
  });
}

// Rank r has r + 1 batches. Ranks without data take part with the buffers that they have.
TEST(ReplicaOptions, InsideJoinBuffersMayBecomeEqualAfterForward) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    torch::nn::BatchNorm1d model(torch::nn::BatchNormOptions(2).momentum(1.0));
    DistributedDataParallel ddp(
        model, communicator,
        {.buffer_hook = std::make_shared<BuffersOfRank>(0, BufferHookLocation::after_forward)});
    AtTheEnd at_the_end(communicator, [&] {
      EXPECT_EQ(model->running_mean[0].item<float>(), 22.0f) << "that of the last rank";
    });
    const auto loop = [&] {
      for (int batch = 0; batch <= rank; ++batch) {
        const auto x = torch::full({4, 2}, static_cast<float>(10 * batch + rank));
        const auto output = ddp.forward(x);
        // The lowest rank with data sends its buffers, which is rank b in step b.
        EXPECT_EQ(model->running_mean[0].item<float>(), static_cast<float>(10 * batch + batch));
        output.sum().backward();
      }
    };
    ddp.join(loop, {.joinables = {&at_the_end}});
  });
}

TEST(ReplicaOptions, SizesOfBucketsMayBeMeasured) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net reference = net(), model = net();
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = kAutomaticBucketBytes});
    const std::int64_t bytes = ddp.logging_data().ints_map.at("bucket_cap_bytes");
    EXPECT_GE(bytes, 256 << 10);
    EXPECT_LE(bytes, 25 << 20);
    EXPECT_EQ(ddp.bucket_plan().front().limit_bytes, static_cast<std::size_t>(bytes) / 4);
    std::ostringstream text;
    text << ddp;
    expect_contains(text.str(), "bucket_bytes=automatic; ");
    expect_step_like_one_process(ddp, reference, communicator.rank().value(), 0);
  });
}

TEST(ReplicaOptions, ALimitOfZeroMakesABucketOfEachGradient) {
  run_ranks(1, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {0}});
    for (const auto& bucket : ddp.bucket_plan()) EXPECT_EQ(bucket.gradients.size(), 1u);
  });
}

TEST(ReplicaOptions, AHookIsForOneModelAtATime) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const bool shares = communicator.rank() == Rank(1);
    DistributedDataParallelOptions options = small_buckets();
    options.communication_hook = std::make_shared<Bf16Reduction>();
    options.mixed_precision.reduce_dtype = DType::bf16;
    Net one = net(), two = net();
    auto first = std::make_unique<DistributedDataParallel<Net>>(one, communicator, options);
    DistributedDataParallelOptions other = options;
    if (!shares) other.communication_hook = std::make_shared<Bf16Reduction>();
    const auto text =
        message_of<Error>([&] { DistributedDataParallel second(two, communicator, other); });
    expect_contains(text, "'bf16, then plain' reduces the gradients of another model");
    expect_contains(text, "give each model a hook of its own (copies of options share one)");
    one->scale.set_requires_grad(true);  // Its own reducer reduces it in the first step,
    loss_of(*first, global_batch(0)).backward();
    loss_of(*first, global_batch(1)).backward();  // and then it is reduced with the others.
    first.reset();
    EXPECT_NO_THROW(DistributedDataParallel(two, communicator, options));
  });
}

// The old buckets and communicator no longer exist and must not be used.
TEST(ReplicaOptions, OptionsMayBeUsedAgainAfterShrink) {
  run_ranks(kRanks, [](Communicator& job) {
    const DistributedDataParallelOptions options = {
        .buffer_hook = std::make_shared<BuffersOfRank>(1),
        .communication_hook = std::make_shared<F16Reduction>()};
    torch::nn::BatchNorm1d model(kInputs);
    auto communicator = job.new_group({0, 1});
    for (int round = 0; round < 3; ++round) {
      {
        DistributedDataParallel ddp(model, *communicator, options);
        const auto value = static_cast<float>(round + 2 * communicator->rank().value());
        model->running_mean.fill_(value);
        ddp.forward(torch::zeros({4, kInputs})).sum().backward();
        expect_close(model->running_mean, torch::full({kInputs}, 0.9 * (round + 2)), "of rank 1");
        expect_close(model->bias.grad(), torch::full({kInputs}, 4.0), "bias");
        ddp.zero_grad();
      }
      communicator = communicator->shrink();
    }
  });
}

TEST(ReplicaOptions, ReplicasAreComparedEverySoManySteps) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, {.verify_every_steps = 3});
    const auto step = [&] { loss_of(ddp, global_batch(0)).backward(); };
    step();
    if (communicator.rank() == Rank(1)) {
      const torch::NoGradGuard no_grad;
      model->shared->bias[2] += 1e-6;  // For example, a rank's own optimizer does this.
    }
    step();
    const auto text = message_of<Mismatch>(step);
    expect_contains(text, "step 3 began with different parameters");
    expect_contains(text, "parameter 'shared.bias' on rank 1 differs from rank 0");
  });
}

TEST(ReplicaOptions, LoggingDataHaveTheKeysOfPyTorch) {
  run_ranks(kRanks, [](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    const LoggingData before = ddp.logging_data();
    EXPECT_EQ(before.ints_map.at("iteration"), 0);
    EXPECT_EQ(before.ints_map.count("can_set_static_graph"), 0u);
    EXPECT_EQ(before.ints_map.at("world_size"), kRanks);
    EXPECT_EQ(before.ints_map.at("rank"), communicator.rank().value());
    EXPECT_EQ(before.ints_map.at("num_parameter_tensors"), 6);
    const std::int64_t bytes = (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3) * 4;
    EXPECT_EQ(before.ints_map.at("total_parameter_size_bytes"), bytes);
    EXPECT_EQ(before.ints_map.at("bucket_cap_bytes"), 256);
    EXPECT_EQ(before.strs_map.at("dtypes"), "float");
    EXPECT_EQ(before.strs_map.at("bucket_sizes"), "108, 288, 224");
    EXPECT_EQ(before.strs_map.at("initial_bucket_size_limits"), "64, 256, 256");
    for (int step = 0; step < 3; ++step) loss_of(ddp, global_batch(step)).backward();
    LoggingData data = ddp.logging_data();
    auto& ints = data.ints_map;
    EXPECT_EQ(ints.at("iteration"), 3);
    EXPECT_EQ(ints.at("unused_parameter_size"), 0);
    EXPECT_EQ(ints.at("num_buckets_reduced"), static_cast<std::int64_t>(ddp.bucket_plan().size()));
    for (const char* key : {"forward_compute_time", "backward_compute_time", "backward_comm_time",
                            "backward_compute_comm_overlap_time"}) {
      EXPECT_GE(ints.at(key), 0) << key;
      EXPECT_GE(ints.at(std::string("avg_") + key), 0) << key;
    }
    EXPECT_EQ(ints.at("backward_compute_time_end") - ints.at("backward_compute_time_start"),
              ints.at("backward_compute_time"));
    EXPECT_LE(ints.at("backward_compute_comm_overlap_time"), ints.at("backward_comm_time"));
    EXPECT_EQ(data.strs_map.at("prev_iteration_grad_ready_order_indices").size(),
              std::string("0, 1, 2, 3, 4, 5").size());
  });
}

// `can_set_static_graph` says whether the graph was the same in all steps. If it changes on one
// rank, all ranks learn of it.
TEST(ReplicaOptions, LoggingDataTellWhetherTheGraphIsStatic) {
  run_ranks(3, [](Communicator& communicator) {
    Branches model;
    DistributedDataParallel ddp(model, communicator, {.find_unused_parameters = true});
    const auto step = [&](bool both) {
      ddp.forward(torch::ones({1, kInputs}), both).sum().backward();
      return ddp.logging_data().ints_map;
    };
    const bool is_first = communicator.rank() == Rank(0);
    EXPECT_EQ(step(is_first).count("can_set_static_graph"), 0u);
    EXPECT_EQ(step(is_first).at("can_set_static_graph"), 1) << "each rank's is as it was";
    EXPECT_EQ(step(false).at("can_set_static_graph"), 0) << "rank 0's is another one";
    EXPECT_EQ(step(false).at("can_set_static_graph"), 0) << "it was";
  });
}

TEST(ReplicaOptions, ItCanBePrinted) {
  run_ranks(kRanks, [](Communicator& communicator) {
    torch::nn::Sequential model(
        torch::nn::Linear(kInputs, 2),
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
    DistributedDataParallel ddp(model, communicator, {.broadcast_buffers = false});
    std::ostringstream text;
    text << ddp;
    const std::string rank = std::to_string(communicator.rank().value());
    expect_contains(text.str(), "stretto::DistributedDataParallel(\n  rank " + rank +
                                    " of 2, 2 dense gradients of 56 bytes in 1 buckets, 1 sparse "
                                    "ones, 0 steps\n");
    expect_contains(text.str(), "broadcast_buffers=false; ");
    expect_contains(text.str(),
                    "communication_hook=plain;\n  (module): torch::nn::Sequential(\n"
                    "    (0): torch::nn::Linear(in_features=6");
  });
}

// Rank 0 takes part in comparing the models, as if it had the same model, and then stops.
TEST(ReplicaOptions, TheTimeoutHoldsForTheConstructor) {
  const DistributedDataParallelOptions options = {.timeout = OwnTimeout::kTimeout};
  for (const bool compares : {false, true}) {
    OwnTimeout timeout;
    run_ranks(kRanks, [&](Communicator& communicator) {
      const Net model = net();
      const auto build = [&] { DistributedDataParallel ddp(model, communicator, options); };
      if (compares && communicator.rank() == Rank(1)) {
        expect_contains(message_of<Mismatch>(build), "is not the same");
      } else if (compares) {
        const auto compare = [&](std::uint64_t own) {
          return communicator::all_gather_value(communicator, own, {})[1];
        };
        const std::uint64_t hash = compare(0);  // Learns the hash of the other rank's model.
        (void)all_gather_bytes(communicator, {});
        (void)compare(hash);
      }
      timeout.expect_of(communicator, build);
    });
  }
}

}  // namespace
}  // namespace stretto

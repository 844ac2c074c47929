// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <chrono>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/job/threads.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/two_level_reduction.h"
#include "stretto/torch/parameter_hook.h"
#include "tests/support/failures.h"
#include "tests/support/files.h"
#include "tests/support/rank_list.h"
#include "tests/support/torch_models.h"

// Training with compressed gradients.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// Returns the loss on all ranks' examples after some steps with these options.
double loss_after(int steps, const DistributedDataParallelOptions& options) {
  double loss = 0;
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    torch::nn::Linear model = with_seed(1, [] { return torch::nn::Linear(64, 32); });
    const auto data = with_seed(2, [] { return torch::randn({16, 64}); });
    const auto target = with_seed(3, [] { return torch::randn({16, 32}); });
    DistributedDataParallel ddp(model, communicator, options);
    torch::optim::SGD optimizer(model->parameters(), 0.2);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const auto own = torch::indexing::Slice(rank * 8, rank * 8 + 8);
      torch::mse_loss(ddp.forward(data.index({own})), target.index({own})).backward();
      optimizer.step();
    }
    EXPECT_NO_THROW(ddp.verify_replicas());
    if (rank == 0) loss = torch::mse_loss(model->forward(data), target).item<double>();
  });
  return loss;
}

TEST(Compression, ReplicasStayEqualAndLearn) {
  const double at_first = loss_after(0, {});
  for (const auto& codec :
       {top_k({.density = 0.1}), int8(), one_bit(), threshold({.limit = 1e-3f})}) {
    EXPECT_LT(loss_after(60, {.codec = codec}), 0.8 * at_first) << codec->name();
  }
  EXPECT_EQ(loss_after(8, {.codec = top_k({.density = 1})}), loss_after(8, {}));
  // Ranks that are threads start hooks in backward only if backward writes no gradients into
  // buckets.
  EXPECT_EQ(
      loss_after(
          8, {.bucket_bytes = {1}, .allocate_in_buckets = false, .codec = top_k({.density = 1})}),
      loss_after(8, {}));
  EXPECT_EQ(loss_after(8, {.codec = top_k(), .compression = Compression::never}),
            loss_after(8, {}));
}

// A model with a branch that is used only if `both`, and with gradients that are worth a codec.
struct BranchedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    return last(torch::tanh(both ? a(x) + b(x) : a(x)));
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(64, 64));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(64, 64));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(64, 32));
};
TORCH_MODULE(Branched);

// Returns the loss after uneven numbers of steps on two hosts, one of which has one rank more. In
// between, all state is saved and loaded.
double loss_on_hosts(DistributedDataParallelOptions options) {
  double loss = 0;
  const auto ranks = [] {
    return make_thread_ranks(
        {.size = 5, .timeout = std::chrono::seconds(60), .hosts = {0, 0, 1, 1, 1}});
  };
  const TemporaryFolder folder;
  options.find_unused_parameters = true;
  on_all(ranks(), [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const auto data = with_seed(2, [] { return torch::randn({20, 64}); });
    const auto target = with_seed(3, [] { return torch::randn({20, 32}); });
    Branched model = seeded<Branched>(1);
    for (const int steps : {4, 10 + 2 * rank}) {
      DistributedDataParallel ddp(model, communicator, options);
      torch::optim::SGD optimizer(model->parameters(), 0.05);
      ddp.join([&] {
        for (int step = 0; step < steps; ++step) {
          optimizer.zero_grad();
          const auto own = torch::indexing::Slice(rank * 4, rank * 4 + 4);
          const torch::Tensor output = ddp.forward(data.index({own}), (step + rank) % 3 > 0);
          torch::mse_loss(output, target.index({own})).backward();
          optimizer.step();
        }
      });
      EXPECT_NO_THROW(ddp.verify_replicas());
      ddp.save_state(folder / "state");
      EXPECT_NO_THROW(ddp.load_state(folder / "state"));
    }
    if (rank == 0) loss = torch::mse_loss(model->forward(data, true), target).item<double>();
  });
  return loss;
}

TEST(Compression, OnHostsOfSeveralRanksItIsOfWhatAHostHas) {
  const double dense = loss_on_hosts({});
  EXPECT_GT(dense, 0);
  EXPECT_NEAR(loss_on_hosts({.codec = top_k({.density = 1})}), dense, 1e-4 * dense);
  EXPECT_NEAR(loss_on_hosts({.codec = f16()}), dense, 0.01 * dense);
  EXPECT_NEAR(loss_on_hosts({.codec = int8()}), dense, 0.05 * dense);
  // Each of a host's two ranks compresses half of the weight.
  on_all(make_thread_ranks({.size = 4, .hosts = {0, 0, 1, 1}}), [&](Communicator& communicator) {
    DistributedDataParallel ddp(torch::nn::Linear(64, 64), communicator, {.codec = int8()});
    ddp.forward(torch::ones({1, 64})).sum().backward();
    EXPECT_EQ(ddp.last_compression()->elements, 64u * 32u);
  });
}

// The hook would read beyond the end of a part.
TEST(Compression, AHookThatSeesParametersIsRefusedWhereItWouldSeeParts) {
  class SeesParameters : public ParameterHook {
   public:
    std::string name() const override { return "sees parameters"; }
    Work start(Communicator&, const FullBucket&) override { return {}; }
  };
  run_ranks(1, [](Communicator& communicator) {
    const auto text = message_of<InvalidArgument>([&] {
      DistributedDataParallel(torch::nn::Linear(2, 2), communicator,
                              {.communication_hook = std::make_shared<TwoLevelReduction>(
                                   std::make_shared<SeesParameters>())});
    });
    expect_contains(text, "is for whole gradients");
  });
}

TEST(Compression, AStepSaysWhatItSentAndWhatItTook) {
  run_ranks(3, [](Communicator& communicator) {
    const torch::Tensor batch = torch::randn({4, 64});
    const DistributedDataParallel plain(torch::nn::Linear(64, 64), communicator);
    EXPECT_EQ(plain.last_compression(), nullptr);
    std::size_t received[2] = {};
    for (const auto exchange : {CompressedExchange::gather, CompressedExchange::divide}) {
      DistributedDataParallel ddp(torch::nn::Linear(64, 64), communicator,
                                  {.codec = top_k(), .exchange = exchange});
      ddp.forward(batch).sum().backward();
      const CompressionStatistics* const step = ddp.last_compression();
      ASSERT_NE(step, nullptr);
      EXPECT_TRUE(step->compressed);
      EXPECT_EQ(step->gradient_bytes, 64u * 64 * 4);
      EXPECT_GE(step->sent_values, 41u);
      EXPECT_GT(step->encode_seconds, 0);
      EXPECT_GT(step->decode_seconds, 0);
      EXPECT_GT(step->exchange_seconds, 0);
      received[exchange == CompressedExchange::divide ? 1 : 0] = step->received_bytes;
    }
    EXPECT_LT(received[1], received[0]);
  });
}

TEST(Compression, FactorsHaveTheRowsOfTheWeight) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    torch::nn::Linear model = with_seed(1, [] { return torch::nn::Linear(64, 32); });
    DistributedDataParallel ddp(model, communicator, {.codec = power_sgd({.rank = 1})});
    ddp.forward(torch::ones({1, 64})).sum().backward();
    EXPECT_EQ(ddp.last_compression()->sent_values, 64u + 32u);
    EXPECT_TRUE(torch::allclose(model->weight.grad(), torch::ones({32, 64})));
  });
}

// The weight was transposed, so its gradient is of low rank only in the layout that it has in
// memory.
TEST(Compression, FactorsAreOfTheMatrixThatLiesInMemory) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    torch::nn::Linear model = with_seed(1, [] { return torch::nn::Linear(64, 32); });
    model->weight.set_data(model->weight.detach().t().contiguous().t());
    DistributedDataParallel ddp(model, communicator, {.codec = power_sgd({.rank = 1})});
    const torch::Tensor data = torch::arange(64, torch::kFloat).sin().unsqueeze(0);
    ddp.forward(data).sum().backward();
    EXPECT_TRUE(torch::allclose(model->weight.grad(), data.expand({32, 64}), 1e-4, 1e-4));
  });
}

// Stands for a rank with a later release of stretto.
class NextVersion : public CompressedReduction {
 public:
  std::string name() const override {
    std::string text = CompressedReduction::name();
    const std::string version = "version 2";
    return text.replace(text.find(version), version.size(), "version 3");
  }
};

// Rank 2 of three has other options; all ranks are told both sides.
void expect_refused(const DistributedDataParallelOptions& own, const std::string& others_text,
                    const std::string& own_text) {
  run_ranks(3, [&](Communicator& communicator) {
    const bool is_other = communicator.rank() == Rank(2);
    const std::string text = error_of<Mismatch>([&] {
      const DistributedDataParallel ddp(
          torch::nn::Linear(64, 64), communicator,
          is_other ? own : DistributedDataParallelOptions{.codec = top_k()});
    });
    const std::size_t at = text.find(others_text);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_LT(text.find("on ranks 0, 1; ", at), text.find(own_text, at)) << text;
    EXPECT_LT(text.find(own_text, at), text.find("on rank 2", at)) << text;
  });
}

TEST(Compression, AnotherCodecOrVersionOrKOnOneRankIsRefusedAndBothSidesAreNamed) {
  expect_refused({.codec = int8()}, "top_k(0.01) from", "int8 from");
  expect_refused({.codec = top_k({.density = 0.02})}, "top_k(0.01) from", "top_k(0.02) from");
  expect_refused({.communication_hook = std::make_shared<NextVersion>()}, "version 2: top_k(0.01)",
                 "version 3: top_k(0.01)");
  expect_refused({.codec = top_k({.values = ValueFormat::bf16})}, "top_k(0.01) from",
                 "top_k(0.01), bf16 values from");
  expect_refused({}, "compressed, version 2: top_k(0.01)", "plain");
}

TEST(Compression, ACodecAndAHookAreOneTooMany) {
  run_ranks(1, [](Communicator& communicator) {
    struct Own : PlainReduction {};
    for (const std::shared_ptr<CommunicationHook>& hook :
         std::vector<std::shared_ptr<CommunicationHook>>{std::make_shared<Bf16Reduction>(),
                                                         std::make_shared<Own>()}) {
      const DistributedDataParallelOptions both{.communication_hook = hook, .codec = int8()};
      EXPECT_THROW(DistributedDataParallel(torch::nn::Linear(2, 2), communicator, both),
                   InvalidArgument);
    }
    const DistributedDataParallelOptions halved{.mixed_precision = {.reduce_dtype = DType::bf16},
                                                .codec = int8()};
    EXPECT_THROW(DistributedDataParallel(torch::nn::Linear(2, 2), communicator, halved),
                 InvalidArgument);
  });
}

TEST(Compression, GradientsOfParametersInLowPrecisionAreCompressedAsFloats) {
  run_ranks(kRanks, [](Communicator& communicator) {
    DistributedDataParallelOptions by_codec{.codec = top_k()}, by_hook;
    by_hook.communication_hook = std::make_shared<CompressedReduction>();
    for (DistributedDataParallelOptions& options : {std::ref(by_codec), std::ref(by_hook)}) {
      options.mixed_precision.parameter_dtype = DType::bf16;
      DistributedDataParallel ddp(torch::nn::Linear(64, 64), communicator, options);
      ddp.forward(torch::ones({4, 64})).sum().backward();
      EXPECT_EQ(ddp.last_compression()->gradient_bytes, 64u * 64 * sizeof(float));
    }
  });
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/reducer/compressed_reduction.h"
#include "stretto/torch/distributed_data_parallel.h"
#include "stretto/torch/optimizer_state.h"
#include "tests/support/files.h"
#include "tests/support/torch_models.h"

// The state that save_state() writes is loaded by load_state() on all ranks or on none.
namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support/torch_models.h.

// A hook with a state: it keeps the rounding errors of bf16 and adds them to the next gradients.
class Feedback : public PlainReduction {
 public:
  std::string name() const override { return "feedback"; }
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    for (std::size_t g = 0; g < bucket.gradients.size(); ++g) {
      const View& view = bucket.gradient_views[g];
      auto* const number = reinterpret_cast<float*>(view.data);
      auto& error = errors_[bucket.gradients[g]];
      error.resize(view.count);
      for (std::size_t i = 0; i < view.count; ++i) {
        const float wanted = number[i] + error[i];
        number[i] = static_cast<float>(BFloat16(wanted));
        error[i] = wanted - number[i];
      }
    }
    return PlainReduction::start(communicator, bucket);
  }
  std::vector<std::byte> save() const override {
    std::vector<std::byte> state;
    for (const auto& [index, error] : errors_) {
      const auto bytes = std::as_bytes(std::span(error));
      state.insert(state.end(), bytes.begin(), bytes.end());
    }
    return state;
  }
  void load(std::span<const std::byte> state) override {
    for (std::size_t index = 0; const std::size_t count : {48, 8, 64, 8, 24, 3}) {
      auto& error = errors_[index++];
      error.resize(count);
      std::memcpy(error.data(), state.data(), count * sizeof(float));
      state = state.subspan(count * sizeof(float));
    }
  }

 private:
  std::map<std::size_t, std::vector<float>> errors_;
};

class SavedState : public ::testing::Test {
 protected:
  static constexpr int kMostRanks = 3;
  // Runs steps `first` to `last` and returns the hash of the parameters. Loads the state first if
  // `first` is not 0, and saves it after step `saved`.
  std::uint64_t train(Communicator& communicator, int first, int last, int saved) {
    Net model = net(first == 0 ? 1 : 9);
    DistributedDataParallelOptions options = small_buckets();
    options.communication_hook = std::make_shared<Feedback>();
    DistributedDataParallel ddp(model, communicator, options);
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    if (first > 0) {
      ddp.load_state(path_, optimizer);
      communicator.barrier().wait();  // Ranks that are threads share one generator.
    }
    for (int step = first; step <= last; ++step) {
      optimizer.zero_grad();
      loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
      optimizer.step();
      if (step == saved) ddp.save_state(path_, optimizer);
    }
    ddp.verify_replicas();
    return ddp.parameter_hash();
  }
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "state";
};

TEST_F(SavedState, RestoresTrainingBitByBit) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    const std::uint64_t whole = train(communicator, 0, 6, 3);
    communicator.barrier().wait();
    EXPECT_EQ(train(communicator, 4, 6, -1), whole);
  });
}

// Adds up in an order that depends on the place of a gradient in its bucket.
class RingReduction : public PlainReduction {
 public:
  std::string name() const override { return "ring"; }
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    return communicator.all_reduce(bucket.view, {.op = bucket.op, .algorithm = "ring"});
  }
};

// Layers are used in the opposite order of their registration, so that buckets are formed anew.
struct BackwardsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool whole) {
    const auto hidden = torch::tanh(second(torch::tanh(third(x))));
    return whole ? first(hidden) : hidden;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(9, 3));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 9));
  torch::nn::Linear third = register_module("third", torch::nn::Linear(kInputs, 7));
};
TORCH_MODULE(Backwards);

// This includes a rank that had left out the first gradients before the state was saved.
TEST_F(SavedState, RestoresBucketsSoThatAnyHookAddsUpAsBefore) {
  run_ranks(kMostRanks, [&](Communicator& communicator, int rank) {
    const auto train = [&](int first, bool unfreezes_late, bool compresses, bool leaves_out) {
      Backwards model = seeded<Backwards>(first == 0 ? 1 : 9);
      if (unfreezes_late) model->third->bias.set_requires_grad(false);
      std::shared_ptr<CommunicationHook> hook = std::make_shared<RingReduction>();
      const CompressionOptions compression{.codec = top_k({.density = 0.3}), .min_elements = 1};
      if (compresses) hook = std::make_shared<CompressedReduction>(compression);
      DistributedDataParallel ddp(model, communicator,
                                  {.bucket_bytes = {300},
                                   .find_unused_parameters = leaves_out,
                                   .communication_hook = hook});
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      if (first > 0) ddp.load_state(path_, optimizer);
      communicator.barrier().wait();  // Ranks that are threads share one generator.
      if (unfreezes_late) model->third->bias.set_requires_grad(true);
      for (int step = first; step < 12; ++step) {
        optimizer.zero_grad();
        const auto seed = static_cast<std::uint64_t>(100 * step + rank);
        const auto data = with_seed(seed, [] { return torch::randn({5, kInputs}); });
        const bool whole = !leaves_out || rank != 1 || step == 0 || step > 4;
        ddp.forward(data, whole).pow(2).mean().backward();
        optimizer.step();
        if (first == 0 && step == 4) ddp.save_state(path_, optimizer);
      }
      communicator.barrier().wait();
      EXPECT_EQ(ddp.logging_data().ints_map.at("has_rebuilt_buckets"), 1);
      const std::size_t last = ddp.bucket_plan().back().gradients.back();
      EXPECT_EQ(ddp.trained_parameters()[last].name.starts_with("first."), leaves_out);
      return ddp.parameter_hash();
    };
    const auto expect_restored = [&](bool compresses, bool leaves_out) {
      const std::uint64_t whole = train(0, false, compresses, leaves_out);
      EXPECT_EQ(train(5, false, compresses, leaves_out), whole);
      EXPECT_EQ(train(5, true, compresses, leaves_out), whole);
      communicator.barrier().wait();
    };
    expect_restored(false, false);
    expect_restored(true, false);
    expect_restored(false, true);
  });
}

// The reader has frozen a parameter that the writer has trained. In one case rank 1 has also
// unfrozen another parameter; in the other case it changes what it has loaded.
TEST_F(SavedState, IsComparedAlsoWhereItBuildsAnotherReducer) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    train(communicator, 0, 0, 0);
    for (const bool unfreezes : {false, true}) {
      Net model = net(9);
      model->last->bias.set_requires_grad(false);
      DistributedDataParallel ddp(model, communicator,
                                  {.communication_hook = std::make_shared<Feedback>()});
      torch::optim::Adam optimizer(ddp.parameters(), 0.01);
      const auto step = [&] { loss_of(ddp, part(global_batch(1), rank)).backward(); };
      step();
      if (unfreezes && rank == 1) model->scale.set_requires_grad(true);
      ddp.load_state(path_, optimizer);
      communicator.barrier().wait();  // Ranks that are threads share one generator.
      EXPECT_EQ(ddp.logging_data().strs_map.at("prev_iteration_grad_ready_order_indices"),
                "0, 1, 2, 3, 4, 5");
      if (!unfreezes && rank == 1) model->last->weight.data().fill_(1);
      expect_contains(message_of<Mismatch>(step),
                      unfreezes ? "parameter 'scale' has requires_grad false on rank 0; true on "
                                : "parameters were replaced on some rank");
    }
  });
}

TEST_F(SavedState, ThatOneRankCannotReadIsRefusedOnAll) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    train(communicator, 0, 0, 0);
    const bool lacks = communicator.rank() == Rank(1);
    if (lacks) std::filesystem::remove(path_ + ".rank1");
    Net model = net(9);
    DistributedDataParallel ddp(model, communicator,
                                {.communication_hook = std::make_shared<Feedback>()});
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    expect_contains(message_of<InvalidArgument>([&] { ddp.load_state(path_, optimizer); }),
                    lacks ? "cannot load the state in '" : "the state of rank 1 could not be ");
  });
}

TEST_F(SavedState, ThatDoesNotFitIsRefused) {
  run_ranks(kRanks, [&](Communicator& communicator) { train(communicator, 0, 0, 0); });
  run_ranks(1, [&](Communicator& communicator) {
    Net model = net();
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    DistributedDataParallel ddp(model, communicator,
                                {.communication_hook = std::make_shared<Feedback>()});
    const auto load = [&](const std::string& path) {
      return message_of<InvalidArgument>([&] { ddp.load_state(path, optimizer); });
    };
    expect_contains(load(path_), "it was written by a job of 2 ranks, and this one has 1");
    const auto expect_no_stack = [](const std::string& text, const char* part) {
      expect_contains(text, part);
      EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
    };
    expect_no_stack(load(path_ + "_nothing"), "cannot load the state in '");
    expect_no_stack(message_of<SystemError>([&] { ddp.save_state(path_ + "/none", optimizer); }),
                    "cannot write the state to '");
  });
  run_ranks(kRanks, [&](Communicator& communicator) {
    Net model = net();
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    DistributedDataParallel ddp(model, communicator);
    expect_contains(message_of<InvalidArgument>([&] { ddp.load_state(path_, optimizer); }),
                    "with the communication hook 'feedback', and this one is 'plain'");
  });
}

// torch::load takes sizes from the file.
TEST_F(SavedState, OfOtherSizesIsTakenOver) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    const auto train = [&](int first) {
      torch::nn::Linear model =
          with_seed(1, [&] { return torch::nn::Linear(kInputs, first == 0 ? 400 : 2); });
      DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}});
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      if (first > 0) ddp.load_state(path_, optimizer);
      communicator.barrier().wait();  // Ranks that are threads share one generator.
      for (int step = first; step < 4; ++step) {
        optimizer.zero_grad();
        const auto data = torch::full({2, kInputs}, 1 + step + communicator.rank().value());
        ddp.forward(data.to(torch::kFloat)).pow(2).mean().backward();
        optimizer.step();
        if (first == 0 && step == 1) ddp.save_state(path_, optimizer);
      }
      communicator.barrier().wait();
      return ddp.parameter_hash();
    };
    const std::uint64_t whole = train(0);
    EXPECT_EQ(train(2), whole);
  });
}

TEST_F(SavedState, MayBeThatOfSeveralOptimizers) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    const auto train_from = [&](int first) {
      Net model = net(first == 0 ? 1 : 9);
      DistributedDataParallel ddp(model, communicator, small_buckets());
      torch::optim::SGD sgd(model->first->parameters(),
                            torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::Adam adam(model->last->parameters(), 0.01);
      if (first > 0) {
        expect_contains(message_of<InvalidArgument>([&] { ddp.load_state(path_, sgd); }),
                        "it has the state of 2 optimizers, and 1 are to be loaded");
        ddp.load_state(path_, sgd, adam);
      }
      for (int step = first; step < 5; ++step) {
        ddp.zero_grad();
        loss_of(ddp, part(global_batch(step), communicator.rank().value())).backward();
        sgd.step();
        adam.step();
        if (first == 0 && step == 2) ddp.save_state(path_, sgd, adam);
      }
      communicator.barrier().wait();
      return ddp.parameter_hash();
    };
    const std::uint64_t whole = train_from(0);
    EXPECT_EQ(train_from(3), whole);
  });
}

// A hook that cannot load its state on rank `refuses`.
class Picky : public Feedback {
 public:
  explicit Picky(Rank refuses) : refuses_(refuses) {}
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    rank_ = communicator.rank();
    return Feedback::start(communicator, bucket);
  }
  void attach(Communicator& communicator, std::span<const GradientDescription>) override {
    rank_ = communicator.rank();
  }
  void load(std::span<const std::byte> state) override {
    if (rank_ == refuses_) throw std::runtime_error("not mine");
    Feedback::load(state);
  }

 private:
  Rank refuses_;
  Rank rank_ = -1;
};

TEST_F(SavedState, ThatOneRankCannotTakeOverIsRefusedOnAll) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    train(communicator, 0, 0, 0);
    const bool refuses = communicator.rank() == Rank(1);
    Net model = net(9);
    DistributedDataParallel ddp(model, communicator,
                                {.communication_hook = std::make_shared<Picky>(1)});
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    const auto load = [&] {
      return message_of<InvalidArgument>([&] { ddp.load_state(path_, optimizer); });
    };
    expect_contains(load(), refuses ? "not mine" : "the state of rank 1 could not be taken over");
    communicator.barrier().wait();
    if (refuses) {
      std::filesystem::copy_file(path_ + ".rank0", path_ + ".rank1",
                                 std::filesystem::copy_options::overwrite_existing);
    }
    expect_contains(load(), refuses ? "it was written by rank 0: each rank has"
                                    : "the state of rank 1 could not be taken over");
  });
}

// The other ranks lose their state if they have stepped parameters that the root has not.
TEST(OptimizerState, IsThatOfTheRootAndNoMore) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    torch::Tensor weight = torch::ones({3}).set_requires_grad(true);
    torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
    weight.mutable_grad() = torch::ones({3});
    if (rank == 1) optimizer.step();
    broadcast_optimizer(optimizer, communicator, Rank(0));
    EXPECT_TRUE(optimizer.state().empty());
    if (rank == 1) optimizer.step();
    broadcast_optimizer(optimizer, communicator, Rank(1));
    EXPECT_EQ(optimizer.state().size(), 1u);
  });
}

// libtorch's save() does nothing for it, so the other ranks would lose their state.
TEST(OptimizerState, OfAClassThatWritesNoneIsRefusedOnAll) {
  struct Own : torch::optim::Optimizer {
    explicit Own(std::vector<torch::Tensor> parameters)
        : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                    std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
      auto* const key = param_groups()[0].params()[0].unsafeGetTensorImpl();
      state_[key] = std::make_unique<torch::optim::SGDParamState>();
      return {};
    }
  };
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    Own optimizer({torch::ones({3})});
    EXPECT_NO_THROW(broadcast_optimizer(optimizer, communicator)) << "there is none";
    optimizer.step();
    const auto refused = [&] { broadcast_optimizer(optimizer, communicator); };
    expect_contains(message_of<InvalidArgument>(refused),
                    rank == 0 ? "override save() and load()" : "rank 0 cannot write the state");
    EXPECT_EQ(optimizer.state().size(), 1u);
  });
}

// libtorch lists the parameters of a layer with two names twice.
TEST(OptimizerState, OfAParameterThatIsListedTwiceIsWhole) {
  run_ranks(kRanks, [](Communicator& communicator, int rank) {
    torch::Tensor weight = torch::ones({3}).set_requires_grad(true);
    const std::vector<torch::Tensor> twice = {weight, weight};
    torch::optim::SGD optimizer(twice, torch::optim::SGDOptions(0.5).momentum(0.5));
    const auto step = [&](float gradient) {
      weight.mutable_grad() = torch::full({3}, gradient);
      optimizer.step();
    };
    step(rank == 0 ? 4.0f : 2.0f);
    broadcast_optimizer(optimizer, communicator, Rank(0));
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2u);
    ASSERT_EQ(optimizer.state().size(), 1u);
    ASSERT_NE(optimizer.state().begin()->second, nullptr);
    weight.data().fill_(1);
    step(0);
    // Rank 0's momentum was 6 after its two updates, and is 3 and 1.5 in the next two.
    EXPECT_TRUE(torch::equal(weight, torch::full({3}, 1 - 0.5 * (3 + 1.5))));
  });
}

TEST_F(SavedState, OfALayerWithTwoNamesIsWhole) {
  run_ranks(kRanks, [&](Communicator& communicator, int rank) {
    torch::nn::Linear layer = with_seed(1, [] { return torch::nn::Linear(kInputs, kInputs); });
    torch::nn::Sequential model(layer, torch::nn::Tanh(), layer);
    DistributedDataParallel ddp(model, communicator);
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    ASSERT_EQ(ddp.parameters().size(), 4u);
    const torch::Tensor data = part(global_batch(0), rank).data;
    const auto step = [&] {
      optimizer.zero_grad();
      ddp.forward(data).pow(2).mean().backward();
      optimizer.step();
      return ddp.parameter_hash();
    };
    step();
    ddp.save_state(path_, optimizer);
    const std::uint64_t next = step();
    ddp.load_state(path_, optimizer);
    for (const auto& [key, state] : optimizer.state()) ASSERT_NE(state, nullptr);
    EXPECT_EQ(step(), next);
  });
}

TEST_F(SavedState, OfWhatHadNotBeenSteppedIsNone) {
  run_ranks(kRanks, [&](Communicator& communicator) {
    Net model = net();
    DistributedDataParallel ddp(model, communicator, small_buckets());
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    ddp.save_state(path_, optimizer);
    loss_of(ddp, global_batch(0)).backward();
    optimizer.step();
    EXPECT_FALSE(optimizer.state().empty());
    ddp.load_state(path_, optimizer);
    EXPECT_TRUE(optimizer.state().empty());
  });
}

}  // namespace
}  // namespace stretto

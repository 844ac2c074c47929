// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// PowerSGD of gradients on a device, which is a double: they are nearly the host's, and the same on
// all ranks.

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/distributed_data_parallel.h"
#include "stretto/torch_device/device_buckets.h"
#include "stretto/torch_device/extract_exchange.h"
#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/device/twins.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

class DeviceFactors : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(, DeviceFactors, all_ways(), name_of);

// A parameter of one dimension is treated as a matrix of 37 rows of 37 elements, of which the last
// row is shorter.
constexpr std::int64_t kVector = 37 * 36 + 30;

struct FactoredImpl : torch::nn::Module {
  explicit FactoredImpl(torch::Device device)
      : wide(register_module("wide", Wide(device, 1))),
        vector(register_parameter("vector", random(7, {kVector}, device))) {}
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    return wide->forward(x, both) + (vector * x.sum()).square().sum();
  }
  Wide wide;
  torch::Tensor vector;
};
TORCH_MODULE(Factored);

// Twins whose gradients are nearly the host's, and the same on all ranks.
class FactoredTwins final : public Twins<Factored> {
 public:
  FactoredTwins(Communicator& communicator, const DistributedDataParallelOptions& options)
      : Twins(communicator, options, Factored(torch::kCPU), Factored(device_of(communicator))),
        communicator_(communicator) {}

  // Sets gradients to infinity. The next step finds that, unless it begins with zeros.
  void spoil_gradients() {
    here_->wide->second.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    there_->wide->second.mutable_grad().fill_(std::numeric_limits<float>::infinity());
  }

 private:
  std::pair<double, double> tolerances(std::size_t, const torch::Tensor& expected) override {
    return {0, 2e-4 * expected.nan_to_num(0, 0, 0).abs().max().item<double>()};
  }
  // Compares the gradient between ranks, if all ranks have one.
  void look_at(std::size_t, const torch::Tensor& gradient) override {
    std::vector<std::int32_t> is_everywhere = {gradient.defined() ? 1 : 0};
    communicator_.all_reduce(is_everywhere, {.op = ReduceOp::min}).wait();
    if (is_everywhere[0] == 0) return;
    const torch::Tensor flat = gradient.cpu().contiguous().view({-1});
    std::vector<float> own(flat.const_data_ptr<float>(),
                           flat.const_data_ptr<float>() + flat.numel());
    std::vector<float> all(own.size() * static_cast<std::size_t>(communicator_.size()));
    communicator_.all_gather(own, all).wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
      const float mine = own[i % own.size()];
      ASSERT_TRUE(bits(all[i]) == bits(mine) || (std::isnan(all[i]) && std::isnan(mine))) << i;
    }
  }

  Communicator& communicator_;
};

TEST_P(DeviceFactors, AreNearlyThoseOfTheHost) {
  for (const int ranks : {2, 3}) {
    for (const std::size_t bytes : {64, 1 << 20}) {
      on_ranks(ranks, [&](Communicator& communicator) {
        const std::size_t rank = ranks == 2 ? 1 : 3;
        FactoredTwins twins(communicator,
                            {.bucket_bytes = {bytes}, .codec = power_sgd({.rank = rank})});
        for (int step = 0; step < 4; ++step) twins.step(step);
        EXPECT_EQ(twins.there().sent_values, twins.here().sent_values);
        EXPECT_EQ(twins.there().message_bytes, twins.here().message_bytes);
        EXPECT_EQ(twins.there().received_bytes, twins.here().received_bytes);
        EXPECT_EQ(twins.there().elements, twins.here().elements);
        EXPECT_EQ(twins.there().buckets, twins.here().buckets);
        EXPECT_GE(Double::get().control().locked_pieces, 1);  // For factors.
      });
    }
  }
}

TEST_P(DeviceFactors, OfWhatARankDoesNotUseAreKept) {
  on_ranks(kRanks, [](Communicator& communicator) {
    FactoredTwins twins(communicator, {.find_unused_parameters = true, .codec = power_sgd()});
    const bool is_first = communicator.rank() == Rank(0);
    twins.step(0);
    twins.step(1, is_first);
    twins.step(2, false);
    twins.step(3, is_first, 1, /*begins=*/false);
    twins.step(4, false, 1, /*begins=*/false);
    twins.step(5);
  });
}

// All ranks see infinity, and begin anew together.
TEST_P(DeviceFactors, InfinityIsSentAndNotKept) {
  on_ranks(kRanks, [](Communicator& communicator) {
    FactoredTwins twins(communicator, {.codec = power_sgd()});
    const bool spoils = communicator.rank() == Rank(1);
    twins.step(0);
    twins.step(1, true, spoils ? std::numeric_limits<float>::infinity() : 1);
    twins.step(2);
    twins.step(3);
  });
}

// No rank computes the gradient, and one rank still has infinity in it.
TEST_P(DeviceFactors, InfinityThatNobodyAddsToTakesNoResidual) {
  on_ranks(kRanks, [](Communicator& communicator) {
    FactoredTwins twins(communicator, {.find_unused_parameters = true, .codec = power_sgd()});
    const bool spoils = communicator.rank() == Rank(1);
    twins.step(0);
    twins.step(1);
    if (spoils) twins.spoil_gradients();
    twins.step(2, /*both=*/false, 1, /*begins=*/!spoils);
    twins.step(3);
  });
}

// A gradient of zeros has no factors, but later gradients have.
TEST_P(DeviceFactors, OfNothingAreFoundLater) {
  on_ranks(kRanks, [](Communicator& communicator) {
    FactoredTwins twins(communicator, {.codec = power_sgd()});
    twins.step(0, true, 0);
    twins.step(1);
    twins.step(2);
  });
}

// Runs the exchange alone with one gradient, of which each rank has `kElements` elements of
// `value`.
class OneGradient {
 public:
  static constexpr std::size_t kRows = 16, kColumns = 8, kElements = kRows * kColumns;

  OneGradient(Communicator& communicator, std::size_t rank, float right)
      : device_(device_of(communicator)),
        memory_(device_),
        residual_(torch::zeros({kElements}, device_)),
        bucket_(torch::zeros({kElements}, device_)),
        exchange_(ddp::factored_exchange_by_host(rank, device_)) {
    exchange_->attach(communicator);
    EXPECT_TRUE(
        exchange_->describe({.name = "w", .dtype = DType::f32, .count = kElements, .rows = kRows}));
    const std::vector<float> factors(rank * kColumns, right);
    exchange_->keep("w", &factors);
  }

  torch::Tensor step(float value) {
    residual_.add_(value);
    FullBucket full{};
    full.view = {static_cast<std::byte*>(bucket_.data_ptr()), kElements, DType::f32};
    full.memory = &memory_;
    exchange_->start(full, {.residuals = {{residual_}}, .names = {"w"}}, {});
    exchange_->wait(full);
    exchange_->finish(full);
    return bucket_.cpu();
  }
  torch::Tensor residual() const { return residual_.cpu(); }

 private:
  torch::Device device_;
  ddp::DeviceBuckets memory_;
  torch::Tensor residual_, bucket_;
  std::unique_ptr<ddp::ExtractExchange> exchange_;
};

// The left factors are zero, although the gradient is not.
TEST_P(DeviceFactors, ThatDoNotSeeAGradientAreDrawnAnew) {
  on_ranks(kRanks, [](Communicator& communicator) {
    OneGradient gradient(communicator, 1, 0);
    EXPECT_TRUE(torch::equal(gradient.step(2), torch::zeros({OneGradient::kElements})));
    EXPECT_TRUE(torch::allclose(gradient.step(2), torch::full({OneGradient::kElements}, 4.0f)));
    EXPECT_TRUE(
        torch::allclose(gradient.residual(), torch::zeros({OneGradient::kElements}), 0, 1e-5));
  });
}

TEST_P(DeviceFactors, AreMultipliedInF32WhateverSurroundsBackward) {
  on_ranks(kRanks, [](Communicator& communicator) {
    OneGradient gradient(communicator, 1, 0.3f);
    at::autocast::set_autocast_enabled(at::kPrivateUse1, true);  // On this thread.
    const torch::Tensor result = gradient.step(0.7f);
    at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
    EXPECT_TRUE(torch::allclose(result, torch::full({OneGradient::kElements}, 0.7f)));
  });
}

// The factors are finite, but their product may not be.
TEST_P(DeviceFactors, ThatAreTooGreatToBeMultipliedAreSeen) {
  on_ranks(kRanks, [](Communicator& communicator) {
    OneGradient gradient(communicator, 2, 1e-3f);
    EXPECT_TRUE(gradient.step(5e37f).isnan().all().item<bool>());
    EXPECT_TRUE(torch::equal(gradient.residual(), torch::zeros({OneGradient::kElements})));
    EXPECT_TRUE(torch::allclose(gradient.step(2), torch::full({OneGradient::kElements}, 2.0f)));
  });
}

}  // namespace
}  // namespace stretto

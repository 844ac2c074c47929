// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Codecs compress gradients on a device, which is a double, and must match the same model on the
// CPU, whose gradients the host compresses.

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch_device/device_compression.h"
#include "tests/device/on_devices.h"
#include "tests/device/placed_model.h"
#include "tests/device/twins.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/double_ranks.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: the models of tests/support.

// With 4 or 5 ranks, parts of the first weight have odd lengths, and the second weight has one
// owner.
constexpr int kOddHidden = 509;

// Exchanges on the device with NCCL or stretto's kernels, or on the host (By::schedules).
class DeviceCodecs : public OnDevices {
 protected:
  static void expect_way(const class WideTwins& twins, const Codec& codec);
  static bool is_by_host() { return GetParam() == By::schedules; }
};
INSTANTIATE_TEST_SUITE_P(, DeviceCodecs, all_ways(), name_of);

// Twins whose steps are compared bit by bit.
class WideTwins final : public Twins<Wide> {
 public:
  WideTwins(Communicator& communicator, const DistributedDataParallelOptions& options,
            int features = kHidden)
      : Twins(communicator, options, Wide(torch::kCPU, 1, features),
              Wide(device_of(communicator), 1, features)),
        adds_by_nccl_(communicator.device() && !communicator.maps_devices()) {}

  // Gradients in buckets return to the same places; other memory of the double is never reused.
  bool are_in_buckets() const { return places_.size() < steps_; }

 private:
  std::pair<double, double> tolerances(std::size_t i, const torch::Tensor&) override {
    // NCCL adds the bias gradients, which are about 1, in another order.
    const double tolerance = adds_by_nccl_ && i == 2 ? 1e-6 : 0;
    return {tolerance, tolerance};
  }
  void look_at(std::size_t i, const torch::Tensor& gradient) override {
    if (i != 0) return;
    ++steps_;
    places_.insert(gradient.data_ptr());
  }

  const bool adds_by_nccl_;
  std::size_t steps_ = 0;
  std::set<const void*> places_;
};

std::vector<std::pair<bool, CompressionReason>> choices_of(const CompressionStatistics& step) {
  std::vector<std::pair<bool, CompressionReason>> choices;
  for (const BucketCompression& each : step.choices) {
    choices.emplace_back(each.compressed, each.reason);
    EXPECT_TRUE(each.codec_seconds > 0 || !each.compressed);
  }
  return choices;
}

// On the device, exchanged messages have neither a header nor packed indices, and do not go through
// host memory, except for messages without a fixed length.
void DeviceCodecs::expect_way(const WideTwins& twins, const Codec& codec) {
  const fake_nccl::Control control = Double::get().control();
  EXPECT_GT(twins.there().sent_values, 0u);
  EXPECT_TRUE(!codec.is_sparse() || twins.there().sent_values < twins.there().elements);
  if (is_by_host() || !codec.message_bytes(0, 0)) {
    EXPECT_EQ(twins.there().message_bytes, twins.here().message_bytes);
    EXPECT_EQ(twins.there().received_bytes, twins.here().received_bytes);
    // Locked pieces: one for copies from the device, and one for messages to it.
    EXPECT_GE(control.locked_pieces, 2);
    EXPECT_TRUE(control.launches == 0 || !is_by_host());
  } else {
    EXPECT_GT(twins.there().message_bytes, 0u);
    EXPECT_EQ(twins.there().received_bytes, twins.there().message_bytes);
    EXPECT_EQ(control.locked_pieces, 0);
  }
}

TEST_P(DeviceCodecs, HaveTheBitsOfTheHost) {
  const auto in_many = top_k({.density = 0.1, .values = ValueFormat::int8});
  const std::vector<std::shared_ptr<const Codec>> codecs = {
      f16(),
      bf16({.clip = 0.01f}),
      int8(),
      int8({.stochastic = true}),
      one_bit(),
      top_k(),
      top_k({.density = 0.1, .values = ValueFormat::bf16}),
      in_many,
      threshold({.limit = 0.02f}),
      threshold({.limit = 0.02f, .values = ValueFormat::bf16})};
  for (const auto& codec : codecs) {
    for (const std::size_t bytes : {64, 1 << 20}) {
      // Many buckets take long.
      if (bytes == 64 && codec != in_many && codec != codecs.back()) continue;
      on_ranks(kRanks, [&](Communicator& communicator) {
        WideTwins twins(communicator, {.bucket_bytes = {bytes}, .codec = codec});
        for (int step = 0; step < 3; ++step) twins.step(step);
        EXPECT_TRUE(twins.are_in_buckets()) << codec->name();
        EXPECT_EQ(twins.there().sent_values, twins.here().sent_values);
        EXPECT_EQ(twins.there().buckets, twins.here().buckets);
        EXPECT_EQ(choices_of(twins.there()), choices_of(twins.here()));
        EXPECT_EQ(twins.there().step, 3);
        expect_way(twins, *codec);
      });
    }
  }
}

TEST_P(DeviceCodecs, OfThreeRanksAreAddedInTheirOrder) {
  for (const auto& codec : {top_k({.density = 0.2}), threshold({.limit = 0.02f})}) {
    on_ranks(3, [&](Communicator& communicator) {
      WideTwins twins(communicator, {.codec = codec});
      for (int step = 0; step < 4; ++step) twins.step(step);
      EXPECT_TRUE(twins.are_in_buckets());
    });
  }
}

// Hidden values that are saturated make zeros. In the last step, a rank sends all of a gradient,
// and another one only what is not zero, or nothing.
TEST_P(DeviceCodecs, NonzerosAreSentWithoutIndicesWhereThatIsShorter) {
  on_ranks(3, [](Communicator& communicator) {
    WideTwins twins(communicator, {.codec = nonzeros()});
    twins.step(0);
    EXPECT_EQ(twins.there().sent_values, twins.there().elements);
    twins.step(1, true, 20);
    EXPECT_LT(twins.there().sent_values, twins.there().elements);
    const float factors[] = {1, 20, 0};
    twins.step(2, true, factors[communicator.rank().value()]);
    EXPECT_TRUE(twins.are_in_buckets());
  });
}

// All gradients are reduced as they are.
TEST_P(DeviceCodecs, DenseLeavesGradientsAsTheyAre) {
  on_ranks(2, [](Communicator& communicator) {
    WideTwins twins(communicator, {.codec = dense(), .exchange = CompressedExchange::combine});
    for (int step = 0; step < 3; ++step) twins.step(step);
    EXPECT_TRUE(twins.are_in_buckets());
    EXPECT_EQ(choices_of(twins.there()), choices_of(twins.here()));
    EXPECT_EQ(twins.there().message_bytes, 0u);
  });
}

// Gradients that are combined, that are divided with indices, or that the host must look at element
// by element. Without memory of the communicator, all divided gradients do.
TEST_P(DeviceCodecs, OthersFindTheirBucketsOnTheHost) {
  std::vector<std::pair<int, DistributedDataParallelOptions>> all = {
      {2, {.codec = top_k({.exact = false})}},
      {2, {.codec = threshold({.limit = 1}), .exchange = CompressedExchange::divide}},
      {4, {.codec = top_k({.density = 0.5})}},
      {2, {.codec = power_sgd({.rank = 64})}},
      {2, {.codec = top_k({.warm_up_steps = 2})}},
      {2, {.codec = f16(), .exchange = CompressedExchange::combine}},
      {2, {.codec = top_k(), .exchange = CompressedExchange::divide}}};
  if (is_by_host()) all.push_back({4, {.codec = f16()}});
  for (const auto& [size, options] : all) {
    const std::string name = options.codec->name();
    on_ranks(size, [&options = options, &name](Communicator& communicator) {
      WideTwins twins(communicator, options);
      for (int step = 0; step < 3; ++step) twins.step(step);
      EXPECT_FALSE(twins.are_in_buckets()) << name;
    });
  }
}

TEST_P(DeviceCodecs, InfinityIsSentAndNotKept) {
  for (const auto& codec : {f16(), int8(), top_k({.density = 0.01, .values = ValueFormat::bf16}),
                            threshold({.limit = 0.02f, .values = ValueFormat::int8})}) {
    on_ranks(kRanks, [&](Communicator& communicator) {
      WideTwins twins(communicator, {.codec = codec});
      const bool spoils = communicator.rank() == Rank(1);
      twins.step(0);
      twins.step(1, true, spoils ? std::numeric_limits<float>::infinity() : 1);
      twins.step(2);
    });
  }
}

// In some steps, the second codec takes nothing out of a gradient.
std::vector<std::shared_ptr<const Codec>> sparse_codecs() {
  return {top_k(), threshold({.limit = 0.05f}), nonzeros()};
}

// The residual waits for a step in which the rank uses the gradient.
TEST_P(DeviceCodecs, WhatARankDoesNotUseKeepsItsResidual) {
  for (const auto& codec : sparse_codecs()) {
    on_ranks(kRanks, [&](Communicator& communicator) {
      WideTwins twins(communicator, {.find_unused_parameters = true, .codec = codec});
      for (int step = 0; step < 6; ++step) {
        twins.step(step, step != 2 && (step % 2 == 0 || communicator.rank() == Rank(0)));
      }
    });
  }
}

// A rank may hold an earlier value of a gradient. It counts as nothing, whether another rank uses
// the gradient or none does.
TEST_P(DeviceCodecs, AValueOfBeforeThatNobodyAddsToIsForgotten) {
  for (const auto& codec : sparse_codecs()) {
    on_ranks(kRanks, [&](Communicator& communicator) {
      WideTwins twins(communicator, {.find_unused_parameters = true, .codec = codec});
      const bool is_first = communicator.rank() == Rank(0);
      twins.step(0);
      twins.step(1, is_first, 1, /*begins=*/false);
      twins.step(2, false);
      twins.step(3);
      twins.step(4, false, 1, /*begins=*/false);
      twins.step(5);
    });
  }
}

// Rank 1 takes part by hand. It announces `announced` bytes; if possible, it sends a message of
// that length with extra bytes at its end.
void exchange_with_a_liar(Communicator& communicator, std::size_t announced,
                          const std::string& complaint) {
  constexpr std::size_t kElements = 1000;
  const auto codec = threshold({.limit = 1});
  if (communicator.rank() == Rank(1)) {
    std::vector<float> carry(kElements), ones(kElements, 1.0f);
    codec::Scratch scratch;
    std::vector<std::byte> message;
    codec->encode({.carry = carry, .gradient = ones, .position = {}}, scratch, message);
    const std::vector<std::size_t> length = {announced};
    std::vector<std::size_t> lengths(2);
    Work told = communicator.all_gather(std::as_bytes(std::span(length)),
                                        std::as_writable_bytes(std::span(lengths)));
    std::vector<std::byte> all;
    if (announced < 2 * message.size()) {
      told.wait();
      message.resize(announced);
      all.resize(lengths[0] + lengths[1]);
      told = communicator.all_gather(message, all, {.counts = lengths});
    }
    EXPECT_THROW(communicator.barrier().wait(), Error);
    (void)told.wait_status();
    return;
  }
  const torch::Device device = device_of(communicator);
  const auto exchange = ddp::exchange_by_host(codec, device);
  exchange->attach(communicator);
  ddp::DeviceBuckets memory(device);
  torch::Tensor values = torch::ones({kElements}, device);
  const ddp::BucketExtracts own{
      .extracts = {ddp::extract_from(values, *codec->extraction(kElements, {}), 0)},
      .names = {"w"}};
  FullBucket full{};
  full.memory = &memory;
  const auto exchanged = [&] {
    exchange->start(full, own, {});
    exchange->wait(full);
    exchange->finish(full);
  };
  expect_contains(message_of<ProtocolError>(exchanged), complaint);
}

TEST_P(DeviceCodecs, MessagesThatCannotBeAreRefused) {
  on_ranks(2, [](Communicator& communicator) {
    exchange_with_a_liar(communicator, std::size_t{1} << 50,
                         "rank 1 announces messages of 1125899906842624 bytes, where at most");
  });
  on_ranks(2, [](Communicator& communicator) {
    const std::size_t bytes = threshold({.limit = 1})->extract_bytes(1000, 1000);
    exchange_with_a_liar(communicator, bytes + 6,
                         "behind the messages of rank 1, in step 1, there are 6 bytes more");
  });
}

// Tests that harm ranks, with a codec or without.
class DeviceCodecsOn : public DeviceCodecs {};
INSTANTIATE_TEST_SUITE_P(, DeviceCodecsOn, ::testing::Values(By::nccl, By::kernels), name_of);

// Messages are gathered, or the step ends between parts and sums, or nothing is compressed.
TEST_P(DeviceCodecsOn, ADeathIsToldByTheOthers) {
  const std::vector<std::pair<int, std::shared_ptr<const Compressor>>> all = {
      {kRanks, nullptr},
      {kRanks, top_k()},
      {kRanks, threshold({.limit = 0.02f})},
      {kRanks, power_sgd()},
      {4, f16()}};
  for (const auto& [size, codec] : all) {
    DoubleRanks ranks = make(size);
    ranks.on_all([&, &codec = codec](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const torch::Device device = device_of(communicator);
      Wide model(device, 1);
      DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}, .codec = codec});
      const auto loss = ddp.forward(batch_of(0, rank, device), true);
      if (rank == 1) {
        model->hidden.register_hook([&](const torch::Tensor&) {
          ranks.kill(1);
          throw Aborted(Status(StatusCode::aborted, "killed"));
        });
      }
      const auto text = message_of<Error>([&] { loss.backward(); });
      if (rank != 1) expect_contains(text, "rank 1");
    });
  }
}

// The exception comes between the parts and the sums of the previous buckets.
TEST_P(DeviceCodecsOn, AnExceptionInADividedStepIsToldToTheOthers) {
  DoubleRanks ranks = make(4);
  ranks.on_all([](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const torch::Device device = device_of(communicator);
    Wide model(device, 1);
    DistributedDataParallel ddp(model, communicator, {.bucket_bytes = {64}, .codec = f16()});
    ddp.forward(batch_of(0, rank, device), true).backward();
    const auto loss = ddp.forward(batch_of(1, rank, device), true);
    if (rank != 2) {
      expect_contains(message_of<Error>([&] { loss.backward(); }), "rank 2");
      return;
    }
    model->hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("no more"); });
    EXPECT_THROW(loss.backward(), std::runtime_error);
  });
}

// The exception comes between two steps and has nothing to do with them.
TEST_P(DeviceCodecsOn, StepsThatHaveEndedAreNotCutOffByALaterException) {
  const std::vector<DistributedDataParallelOptions> all = {
      {}, {.codec = int8()}, {.codec = int8(), .exchange = CompressedExchange::divide}};
  for (const DistributedDataParallelOptions& options : all) {
    DoubleRanks ranks = make(kRanks);
    ranks.on_all([&](Communicator& communicator) {
      const torch::Device device = device_of(communicator);
      const auto train = [&] {
        Wide model(device, 1);
        DistributedDataParallel ddp(model, communicator, options);
        ddp.forward(batch_of(0, communicator.rank().value(), device), true).backward();
        throw std::runtime_error("no more data");
      };
      EXPECT_THROW(train(), std::runtime_error);
      EXPECT_NO_THROW(communicator.barrier().wait());
    });
  }
}

// Cases in which gradients are divided, because there are many ranks or because `exchange` says so.
struct Division {
  int ranks = 4;
  std::shared_ptr<const Codec> codec = f16();
  CompressedExchange exchange = CompressedExchange::gather;
};

// The bytes of a rank's share in one bucket, without headers: all shares are as long as that of the
// owner of the second gradient, and parts begin at multiples of 16 bytes.
std::size_t f16_share_bytes(std::size_t ranks) {
  const auto bytes = [](std::size_t elements) { return (2 * elements + 15) / 16 * 16; };
  const std::size_t divided = kOddHidden * kInputs;
  return bytes(2 * divided / ranks - divided / ranks) + bytes(4 * kOddHidden);
}

// This includes steps after one in which a rank clips, and after one in which it has infinity.
TEST_P(DeviceCodecsOn, DividedHaveTheBitsOfTheHost) {
  std::vector<Division> all = {{4, f16()},
                               {5, bf16({.clip = 0.01f})},
                               {5, int8(), CompressedExchange::divide},
                               {5, int8({.stochastic = true}), CompressedExchange::divide},
                               {2, one_bit(), CompressedExchange::divide},
                               {2, f16(), CompressedExchange::divide}};
  if (GetParam() == By::nccl) all.push_back({1, f16(), CompressedExchange::divide});
  for (const Division& each : all) {
    make(each.ranks).on_all([&](Communicator& communicator) {
      WideTwins twins(communicator, {.codec = each.codec, .exchange = each.exchange}, kOddHidden);
      const bool spoils = communicator.rank() == Rank(each.ranks - 1);
      twins.step(0);
      twins.step(1);
      twins.step(2, true, spoils ? 1e6f : 1);
      twins.step(3, true, spoils ? std::numeric_limits<float>::infinity() : 1);
      twins.step(4);
      EXPECT_TRUE(twins.are_in_buckets()) << each.codec->name() << each.ranks;
      EXPECT_EQ(twins.there().elements, twins.here().elements);
      EXPECT_EQ(twins.there().sent_values, twins.here().sent_values);
      EXPECT_EQ(twins.there().buckets, twins.here().buckets);
      EXPECT_EQ(choices_of(twins.there()), choices_of(twins.here()));
      if (each.ranks != 4) return;
      EXPECT_EQ(twins.there().message_bytes, 5 * f16_share_bytes(4));
      EXPECT_EQ(twins.there().received_bytes, 6 * f16_share_bytes(4));
    });
    EXPECT_EQ(Double::get().control().locked_pieces, 0);
  }
}

// The sums of a bucket leave when the next bucket is full.
TEST_P(DeviceCodecsOn, DividedInManyBucketsHaveTheBitsOfTheHost) {
  make(4).on_all([](Communicator& communicator) {
    WideTwins twins(communicator, {.bucket_bytes = {64}, .codec = bf16()}, kOddHidden);
    for (int step = 0; step < 4; ++step) twins.step(step);
    EXPECT_TRUE(twins.are_in_buckets());
    EXPECT_EQ(twins.there().buckets, 2u);
  });
}

// A rank that has not computed a gradient adds up its part of the values that other ranks still
// hold from earlier steps. If no rank has computed the gradient, that must leave no residual.
TEST_P(DeviceCodecsOn, DividedResidualsOfUnusedGradientsAreThoseOfTheHost) {
  for (const auto& codec : {f16(), bf16()}) {
    make(4).on_all([&](Communicator& communicator) {
      WideTwins twins(communicator, {.find_unused_parameters = true, .codec = codec}, kOddHidden);
      const bool is_first = communicator.rank() == Rank(0);
      const bool is_owner = communicator.rank() == Rank(1);  // It owns the second weight.
      twins.step(0);
      twins.step(1, is_first);
      twins.step(2, false, 1, /*begins=*/is_owner);
      twins.step(3);
      twins.step(4, is_first, 1, /*begins=*/false);
      twins.step(5);
    });
  }
}

// Returns how `ranks` ranks exchange gradients of `elements` elements with `codec`.
std::optional<CompressedExchange> exchange_of(
    const Codec& codec, std::size_t elements, int ranks,
    CompressedExchange wanted = CompressedExchange::gather) {
  const GradientDescription weight{.name = "weight", .count = elements};
  return ddp::DeviceCompression::exchange_of(codec, std::span(&weight, 1), ranks, wanted);
}

TEST(DeviceCompression, DividesWhereTheHostDoes) {
  using enum CompressedExchange;
  EXPECT_EQ(exchange_of(*f16(), 8192, 3), gather);
  EXPECT_EQ(exchange_of(*f16(), 8192, 4), divide);
  EXPECT_EQ(exchange_of(*f16(), 2047, 4), gather);
  EXPECT_EQ(exchange_of(*f16(), 2048, 4), divide);
  EXPECT_EQ(exchange_of(*f16(), 8192, 2, divide), divide);
  EXPECT_EQ(exchange_of(*int8(), 8192, 7), gather);
  EXPECT_EQ(exchange_of(*int8(), 8192, 8), divide);
  EXPECT_EQ(exchange_of(*top_k(), 8192, 8), gather);
  EXPECT_EQ(exchange_of(*top_k({.density = 0.5}), 8192, 8), std::nullopt);
  EXPECT_EQ(exchange_of(*top_k(), 8192, 8, divide), std::nullopt);
  EXPECT_EQ(exchange_of(*threshold({.limit = 1}), 8192, 8), gather);
  EXPECT_EQ(exchange_of(*nonzeros(), 8192, 8), gather);
  EXPECT_EQ(exchange_of(*nonzeros(), 8192, 8, divide), std::nullopt);
  EXPECT_EQ(exchange_of(*one_bit(), 1 << 20, 60), gather);
  EXPECT_EQ(exchange_of(*one_bit(), 1 << 20, 61), divide);
  EXPECT_EQ(exchange_of(*threshold({.limit = 1}), 8192, 8, divide), std::nullopt);
  EXPECT_EQ(exchange_of(*f16(), 8192, 2, combine), std::nullopt);
  EXPECT_EQ(exchange_of(*f16(), 8192, 2, automatic), std::nullopt);
  EXPECT_EQ(exchange_of(*f16(), 100, 2), std::nullopt);
}

// Runs the program of scripts/gpu_check.py in two processes, or with NCCL in one, since its double
// knows no other processes.
class GpuRankProgram : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, GpuRankProgram, ::testing::Values("stretto", "cuda", "nccl"));

TEST_P(GpuRankProgram, FindsNoDifferenceOnTheDouble) {
  const std::string bin = STRETTO_BIN_DIR, fake = bin + "/libfake_nccl.so";
  const bool is_alone = GetParam() == "nccl";
  Process job({STRETTO_TOOL, "run", "-n", is_alone ? "1" : "2", "--", bin + "/gpu_rank_program",
               "fake_device", "64"},
              {{"STRETTO_CUDA_DRIVER", fake},
               {"STRETTO_CUDA_KERNELS", fake},
               {"STRETTO_NCCL_LIBRARY", fake},
               {"STRETTO_BACKEND", GetParam()},
               {"LD_PRELOAD", bin + "/libfake_device.so"}});
  const auto [status, text, errors] = end_of(job);
  EXPECT_EQ(status, 0) << text << errors;
  const std::string last = is_alone ? "\"rank\": 0, \"ranks\": 1" : "\"rank\": 1, \"ranks\": 2";
  if (GetParam() != "stretto") {
    expect_contains(text, "\"collectives on memory of the communicator\", " + last);
    expect_contains(text, "\"all_reduce of 256 KiB\", " + last);
  }
  if (is_alone) expect_contains(text, "\"collectives in a graph\", " + last);
  if (GetParam() == "cuda") {
    expect_contains(text, "\"bits of the host, all collectives\", " + last);
    expect_contains(text, "\"bits of the host, all dtypes\", " + last);
    expect_contains(text, "\"memory that comes and goes\", " + last);
  }
  expect_contains(text, "\"averages of parameters\", " + last);
  expect_contains(text, "\"codec int8\", " + last + ", \"largest_difference\": 0");
}

}  // namespace
}  // namespace stretto

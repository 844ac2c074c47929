// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compressed_reduction.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

using testing::compressing;
using testing::floats;
using testing::message_of;

std::vector<GradientDescription> model() {
  return {{"a.weight", DType::f32, 2000},
          {"a.bias", DType::f32, 10},
          {"b.weight", DType::f32, 1500},
          {"steps", DType::i64, 3}};
}

// Writes the gradients of a rank in a step, which do not depend on the buckets.
void make_gradients(Reducer& reducer, int rank, int step) {
  for (std::size_t i = reducer.gradient_count(); i-- > 0;) {
    Random random(static_cast<std::uint64_t>(1000 * step + 100 * rank) + i);
    if (i == 3) {
      std::ranges::fill(reducer.gradient_bytes(i), std::byte{0});
    } else {
      for (float& value : floats(reducer, i)) value = static_cast<float>(random.uniform()) - 0.5f;
    }
    reducer.mark_ready(i);
  }
}

Floats all_of(const Reducer& reducer) {
  Floats values;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto part = floats(reducer, i);
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

// Returns the gradients after each of `steps` steps of `ranks` ranks, and checks that they are the
// same on all ranks.
std::vector<Floats> results(int ranks, int steps, const CompressionOptions& options,
                            std::size_t bucket_bytes = 6000) {
  RankVector<std::vector<Floats>> of_rank(ranks);
  run_ranks(ranks, [&](Communicator& communicator, int rank) {
    Reducer reducer(
        communicator, model(),
        {.op = ReduceOp::sum, .bucket_bytes = {bucket_bytes}, .hook = compressing(options)});
    for (int step = 0; step < steps; ++step) {
      make_gradients(reducer, rank, step);
      reducer.finalize();
      of_rank[rank].push_back(all_of(reducer));
    }
  });
  for (const auto& other : of_rank) EXPECT_EQ(other, of_rank[0]);
  return of_rank[0];
}

std::vector<std::shared_ptr<const Codec>> codecs() {
  return {top_k({.density = 0.1}),
          top_k({.density = 0.1, .values = ValueFormat::bf16}),
          threshold({.limit = 0.6f}),
          int8(),
          int8({.stochastic = true}),
          one_bit(),
          top_k({.density = 0.1, .exact = false}),
          f16(),
          bf16()};
}

constexpr CompressedExchange kExchanges[] = {CompressedExchange::gather, CompressedExchange::divide,
                                             CompressedExchange::combine};

// Long gradients are decoded a section at a time.
TEST(CompressedReduction, LongGradientsAreAddedUpToTheEnd) {
  constexpr std::size_t kCount = 100001;
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, {{"w", DType::f32, kCount}, {"v", DType::f32, 3}},
                    {.hook = compressing({.codec = int8(), .min_elements = 1})});
    for (const std::size_t i : {1, 0}) {
      // int8() represents these values exactly.
      for (std::size_t e = 0; e < floats(reducer, i).size(); ++e) {
        floats(reducer, i)[e] = static_cast<float>(e % 7) + static_cast<float>(rank);
      }
      reducer.mark_ready(i);
    }
    reducer.finalize();
    for (const std::size_t i : {0, 1}) {
      for (std::size_t e = 0; e < floats(reducer, i).size(); ++e) {
        ASSERT_EQ(floats(reducer, i)[e], static_cast<float>(e % 7) + 0.5f) << e;
      }
    }
  });
}

TEST(CompressedReduction, RanksAgreeBitForBitAndAgain) {
  for (const CompressedExchange exchange : kExchanges) {
    for (const auto& codec : codecs()) {
      const CompressionOptions options{.codec = codec, .exchange = exchange};
      EXPECT_EQ(results(3, 4, options), results(3, 4, options)) << codec->name();
    }
  }
}

// A gradient gets the same bits in a bucket of its own and in one with others, whatever their
// codecs.
TEST(CompressedReduction, BucketsDoNotMatter) {
  for (const CompressedExchange exchange : kExchanges) {
    for (const auto& codec : codecs()) {
      for (const auto& other : {codec, threshold({.limit = 0.3f}), dense(), int8()}) {
        const CompressionOptions options{
            .codec = codec, .rules = {{"b.*", other}}, .exchange = exchange};
        const auto alone = results(4, 3, options, 1);
        EXPECT_EQ(results(4, 3, options, 1 << 20), alone) << codec->name() << other->name();
        EXPECT_EQ(results(4, 3, options, 6500), alone) << codec->name() << other->name();
      }
    }
  }
}

// The first steps of a warm-up send almost everything. Gathered, that is more than without a codec.
TEST(CompressedReduction, StepsThatGatherAsMuchAsDenseAreDividedWhateverTheBuckets) {
  const CompressionOptions options{.codec = top_k({.density = 0.01, .warm_up_steps = 3})};
  EXPECT_EQ(results(4, 5, options, 1), results(4, 5, options));
  run_ranks(4, [&](Communicator& communicator) {
    const auto compressed = compressing(options);
    Reducer reducer(communicator, {{"w", DType::f32, 8000}}, {.hook = compressed});
    Random random(static_cast<std::uint64_t>(communicator.rank().value()));
    std::vector<double> received;  // In units of one gradient.
    for (int step = 0; step < 4; ++step) {
      for (float& value : floats(reducer, 0)) value = static_cast<float>(random.uniform());
      reducer.mark_ready(0);
      reducer.finalize();
      received.push_back(static_cast<double>(compressed->last_step().received_bytes) / 32000);
    }
    // Divided, a rank receives 6/4 of a message; gathered, 3 messages.
    EXPECT_NEAR(received[0], 1.5, 0.1);
    EXPECT_NEAR(received[3], 3 * 0.013, 0.01);
    EXPECT_EQ(compressed->exchange_reason(), "gathered, as was asked for");
  });
}

// What all ranks have sent so far and what they still hold must add up to their gradients.
void expect_nothing_is_lost(CompressedExchange exchange, int ranks) {
  for (const auto& codec : codecs()) {
    std::mutex mutex;
    std::vector<double> had(3510), left(3510), sent(3510);
    run_ranks(ranks, [&](Communicator& communicator, int rank) {
      const auto compressed = compressing({.codec = codec, .exchange = exchange});
      Reducer reducer(communicator, model(),
                      {.op = ReduceOp::sum, .bucket_bytes = {6000}, .hook = compressed});
      for (int step = 0; step < 5; ++step) {
        make_gradients(reducer, rank, step);
        {
          // Reduced gradients may already be overwritten, so they are drawn again.
          const std::lock_guard lock(mutex);
          std::size_t at = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            Random random(static_cast<std::uint64_t>(1000 * step + 100 * rank) + i);
            for (std::size_t e = 0; e < model()[i].count; ++e) {
              had[at++] += static_cast<float>(random.uniform()) - 0.5f;
            }
          }
        }
        reducer.finalize();
        if (rank != 0) continue;
        const Floats values = all_of(reducer);
        const std::lock_guard lock(mutex);
        for (std::size_t e = 0; e < values.size(); ++e) sent[e] += values[e];
      }
      const std::lock_guard lock(mutex);
      std::size_t at = 0;
      for (const char* name : {"a.weight", "a.bias", "b.weight"}) {
        const auto residual = compressed->residual(name);
        for (std::size_t e = 0; e < residual.size(); ++e) left[at + e] += residual[e];
        at += residual.empty() ? 10 : residual.size();
      }
      EXPECT_TRUE(exchange == CompressedExchange::combine ||
                  compressed->last_step().message_bytes <
                      compressed->last_step().gradient_bytes * 4 / 5);
      EXPECT_EQ(compressed->last_step().elements, 3500u);
    });
    for (std::size_t e = 0; e < had.size(); ++e) {
      ASSERT_NEAR(sent[e] + left[e], had[e], 1e-5) << codec->name() << ", element " << e;
    }
  }
}

TEST(CompressedReduction, NothingIsLost) {
  for (const CompressedExchange exchange : kExchanges) expect_nothing_is_lost(exchange, 2);
  expect_nothing_is_lost(CompressedExchange::combine, 3);
}

// There is no link model for shared memory. For few bytes, latency decides.
TEST(CompressedReduction, WhichExchangeIsFasterIsAgreedAndSaid) {
  const auto expect = [](const std::string& expected, std::size_t elements, bool shared_memory) {
    run_ranks(
        4,
        [&](Communicator& communicator) {
          const auto compressed =
              compressing({.codec = int8(), .exchange = CompressedExchange::automatic});
          const Reducer reducer(communicator, {{"w", DType::f32, elements}}, {.hook = compressed});
          EXPECT_TRUE(compressed->exchange_reason().starts_with(expected))
              << compressed->exchange_reason();
        },
        shared_memory);
  };
  expect("gathered: there is no model of these links", 1 << 20, true);
  expect("gathered: the model of the links predicts", 2000, false);
  expect("divided: the model of the links predicts", 1 << 20, false);
  run_ranks(4, [](Communicator& communicator) {
    const auto halved = compressing({.codec = f16()});
    const Reducer reducer(communicator, {{"w", DType::f32, 4000}}, {.hook = halved});
    EXPECT_EQ(halved->exchange_reason(),
              "divided: gathered, they are as many bytes as an all_reduce without them");
  });
}

TEST(CompressedReduction, AllOfThemAreTheMean) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    const auto reduced = [&](std::shared_ptr<CommunicationHook> with) {
      Reducer reducer(communicator, model(), {.hook = std::move(with)});
      make_gradients(reducer, rank, 0);
      reducer.finalize();
      return all_of(reducer);
    };
    EXPECT_EQ(reduced(compressing({.codec = top_k({.density = 1})})),
              reduced(std::make_shared<PlainReduction>()));
    EXPECT_EQ(reduced(compressing(
                  {.codec = top_k({.density = 1}), .exchange = CompressedExchange::divide})),
              reduced(std::make_shared<PlainReduction>()));
    EXPECT_EQ(reduced(compressing({.compression = Compression::never})),
              reduced(std::make_shared<PlainReduction>()));
  });
}

TEST(CompressedReduction, RulesChooseByNameAndSmallOnesTravelAsTheyAre) {
  run_ranks(2, [](Communicator& communicator) {
    const auto compressed = compressing(
        {.codec = top_k({.density = 0.01}), .rules = {{"b.*", int8()}, {"*.bias", dense()}}});
    Reducer reducer(communicator, model(), {.hook = compressed});
    make_gradients(reducer, communicator.rank().value(), 0);
    reducer.finalize();
    const auto zeros = [&](std::size_t i) { return std::ranges::count(floats(reducer, i), 0.0f); };
    EXPECT_GE(zeros(0), 1960);
    EXPECT_LT(zeros(1), 3);
    EXPECT_LT(zeros(2), 100);
    EXPECT_TRUE(compressed->residual("a.bias").empty());
  });
}

TEST(CompressedReduction, GoesOnBitForBitWhereItWasSaved) {
  for (const auto& codec : {top_k({.density = 0.1}), int8({.stochastic = true}),
                            top_k({.density = 0.1, .exact = false})}) {
    const CompressionOptions options{
        .codec = codec, .momentum = 0.5f, .exchange = CompressedExchange::divide};
    const auto through = results(2, 6, options);
    run_ranks(2, [&](Communicator& communicator, int rank) {
      std::vector<std::byte> state;
      for (int begin = 0; begin < 6; begin += 3) {
        const auto compressed = compressing(options);
        if (begin > 0) compressed->load(state);
        Reducer reducer(communicator, model(),
                        {.op = ReduceOp::sum, .bucket_bytes = {3000}, .hook = compressed});
        for (int step = begin; step < begin + 3; ++step) {
          make_gradients(reducer, rank, step);
          reducer.finalize();
          EXPECT_EQ(all_of(reducer), through[static_cast<std::size_t>(step)]) << codec->name();
        }
        state = compressed->save();
      }
    });
  }
}

TEST(CompressedReduction, ResidualsOfAnotherNumberOfRanksAreAddedUp) {
  RankVector<std::vector<std::byte>> states(3);
  Floats sum(2000);
  std::mutex mutex;
  run_ranks(3, [&](Communicator& communicator) {
    const auto compressed = compressing({});
    Reducer reducer(communicator, model(), {.hook = compressed});
    make_gradients(reducer, communicator.rank().value(), 0);
    reducer.finalize();
    const std::lock_guard lock(mutex);
    states[communicator.rank()] = compressed->save();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += compressed->residual("a.weight")[i];
  });
  EXPECT_THROW((void)CompressedReduction::redistribute({}, 2), InvalidArgument);
  EXPECT_THROW((void)CompressedReduction::redistribute(states, 0), InvalidArgument);
  const RankVector<std::vector<std::byte>> made = CompressedReduction::redistribute(states, 2);
  ASSERT_EQ(made.size(), 2u);
  run_ranks(2, [&](Communicator& communicator, int rank) {
    const auto of_three = compressing({});
    of_three->load(states[rank]);
    EXPECT_THROW(Reducer(communicator, model(), {.hook = of_three}), InvalidArgument);
    const auto compressed = compressing({.codec = top_k({.density = 1})});
    compressed->load(made[rank]);
    Reducer reducer(communicator, model(), {.hook = compressed});
    const auto residual = compressed->residual("a.weight");
    ASSERT_EQ(residual.size(), 2000u);
    const bool is_zero = std::ranges::all_of(residual, [](float value) { return value == 0; });
    EXPECT_EQ(is_zero, rank == 1);
    for (std::size_t i = reducer.gradient_count(); i-- > 0;) {
      std::ranges::fill(reducer.gradient_bytes(i), std::byte{0});
      reducer.mark_ready(i);
    }
    reducer.finalize();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(floats(reducer, 0)[i], sum[i] / 3, 1e-6f)
          << "as it would have counted in the mean";
    }
  });
}

TEST(CompressedReduction, DamagedStatesAreRefused) {
  CompressedReduction reduction;
  std::vector<std::byte> state = reduction.save();
  EXPECT_NO_THROW(reduction.load(state));
  state[9] ^= std::byte{1};
  EXPECT_THROW(reduction.load(state), InvalidArgument);
  EXPECT_THROW(reduction.load({}), InvalidArgument);
}

TEST(CompressedReduction, OptionsWithoutMeaningAreRefused) {
  EXPECT_THROW(CompressedReduction({.codec = nullptr}), InvalidArgument);
  EXPECT_THROW(CompressedReduction({.codec = one_bit({.stochastic = true})}), InvalidArgument);
  EXPECT_NO_THROW(
      CompressedReduction({.codec = one_bit({.stochastic = true}), .error_feedback = false}));
  EXPECT_THROW(CompressedReduction({.momentum = 1}), InvalidArgument);
  EXPECT_THROW(CompressedReduction({.clip_norm = -1}), InvalidArgument);
}

TEST(CompressedReduction, GradientsAsLongAsNoMessageMayBeAreRefused) {
  run_ranks(1, [](Communicator& communicator) {
    const GradientDescription huge[] = {{"table", DType::f32, std::size_t{1} << 32}};
    expect_contains(
        message_of<InvalidArgument>([&] { compressing({})->attach(communicator, huge); }),
        "gradient table has 4294967296 elements; codecs take fewer than 2^32");
  });
}

TEST(CompressedReduction, WhatAnotherHookHasConvertedIsRefused) {
  const std::shared_ptr<CommunicationHook> hooks[] = {compressing({.min_elements = 1}),
                                                      compressing({.codec = power_sgd()})};
  for (const auto& inner : hooks) {
    run_ranks(1, [&](Communicator& communicator) {  // The first rank to refuse would end it.
      Reducer reducer(communicator, {{.name = "weight", .count = 4096}},
                      {.hook = std::make_shared<Bf16Reduction>(inner)});
      expect_contains(message_of<InvalidArgument>([&] {
                        reducer.mark_ready(0);
                        reducer.finalize();
                      }),
                      "gets bf16");
    });
  }
}

// Minimises |x - target|^2 with gradients of which 1 % of the elements are sent. Each rank knows
// its part of the target.
double distance_after(int steps, bool error_feedback) {
  double distance = 0;
  run_ranks(2, [&](Communicator& communicator, int rank) {
    constexpr std::size_t kCount = 2000;
    Reducer reducer(communicator, {{"x", DType::f32, kCount}},
                    {.hook = compressing(
                         {.codec = top_k({.density = 0.01}), .error_feedback = error_feedback})});
    Floats x(kCount);
    for (int step = 0; step < steps; ++step) {
      const auto gradient = floats(reducer, 0);
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto target = static_cast<float>(i % 7) + (rank == 0 ? 0.5f : -0.5f);
        gradient[i] = x[i] - target;
      }
      reducer.mark_ready(0);
      reducer.finalize();
      for (std::size_t i = 0; i < kCount; ++i) x[i] -= 0.005f * floats(reducer, 0)[i];
    }
    if (rank != 0) return;
    for (std::size_t i = 0; i < kCount; ++i) {
      distance += std::abs(double{x[i]} - static_cast<double>(i % 7)) / kCount;
    }
  });
  return distance;
}

TEST(CompressedReduction, ErrorFeedbackMakesUpForWhatIsNotSent) {
  EXPECT_LT(distance_after(1000, true), 0.5);
  EXPECT_GT(distance_after(1000, false), 2);
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How messages travel, and what depends on it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/random.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

using testing::compressing;
using testing::copy_of;
using testing::floats;
using testing::message_of;

constexpr std::size_t kCount = 6000;
constexpr float kNothing = std::numeric_limits<float>::infinity();

// Draws a gradient with some zeros, which are not sent at all.
Floats gradient_of(int rank, int step, std::size_t count = kCount) {
  Random random(static_cast<std::uint64_t>(100 * step + rank));
  Floats values(count);
  for (float& value : values) {
    value = random.below(4) == 0 ? 0 : static_cast<float>(random.uniform()) - 0.5f;
  }
  return values;
}

// Adds all values of at least `limit` in the order of ranks.
Floats naive_sum(int ranks, int step, float limit, std::size_t count = kCount) {
  Floats sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const Floats values = gradient_of(rank, step, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += std::abs(values[i]) >= limit ? values[i] : 0;
  }
  return sum;
}

struct Step {
  Floats sum;
  Floats residual;  // The residual of this rank.
  CompressionStatistics statistics;
};

// Runs a step without residuals of earlier steps.
Step run_step(Communicator& communicator, const CompressionOptions& options, int step = 0,
              std::size_t count = kCount) {
  const auto hook = compressing(options);
  Reducer reducer(communicator, {{"w", DType::f32, count}}, {.op = ReduceOp::sum, .hook = hook});
  std::ranges::copy(gradient_of(communicator.rank().value(), step, count),
                    floats(reducer, 0).begin());
  reducer.mark_ready(0);
  reducer.finalize();
  return {copy_of(floats(reducer, 0)), copy_of(hook->residual("w")), hook->last_step()};
}

// The bytes that an all_reduce without a codec receives.
double dense_bytes(int ranks, std::size_t count) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(count * sizeof(float));
}

TEST(CombinedExchange, SendsWholeSumsInTheOrderOfRanksAndNoMoreThanAnAllReduce) {
  for (const int ranks : {2, 3, 4, 5}) {
    // The smaller gradient is not divided, and has one owner.
    for (const std::size_t count : {kCount, std::size_t{700}}) {
      for (const float limit : {kNothing, 0.45f, 0.2f, 0.0f}) {
        run_ranks(ranks, [&](Communicator& communicator) {
          CompressionOptions options{.codec = threshold({.limit = limit}), .min_elements = 1};
          const Step gathered = run_step(communicator, options, 1, count);
          options.exchange = CompressedExchange::combine;
          const Step combined = run_step(communicator, options, 1, count);
          EXPECT_EQ(combined.sum, naive_sum(ranks, 1, limit, count)) << ranks << ", " << limit;
          EXPECT_EQ(combined.sum, gathered.sum);
          EXPECT_EQ(combined.residual, gathered.residual);
          const double headers = 40.0 * 2 * ranks;
          const double whole = dense_bytes(ranks, count);
          if (count == kCount) {
            EXPECT_LT(static_cast<double>(combined.statistics.received_bytes),
                      1.02 * whole + headers);
          }
          if (limit == kNothing) {
            EXPECT_LE(static_cast<double>(combined.statistics.received_bytes), headers);
          }
        });
      }
    }
  }
}

// Trains two gradients whose messages have no fixed length, and one whose messages have. A step of
// it gathers too much.
struct Training {
  Training(Communicator& communicator, const std::shared_ptr<CompressedReduction>& with,
           std::size_t bucket_bytes)
      : rank(communicator.rank().value()),
        hook(with),
        reducer(communicator,
                {{"u", DType::f32, kCount}, {"v", DType::f32, 10}, {"w", DType::f32, kCount}},
                {.op = ReduceOp::sum, .bucket_bytes = {bucket_bytes}, .hook = hook}) {}
  Floats step(int number) {
    Floats sums;
    for (const std::size_t i : {2, 1, 0}) {
      const auto values = floats(reducer, i);
      std::ranges::copy(gradient_of(rank, 10 * number + static_cast<int>(i), values.size()),
                        values.begin());
      reducer.mark_ready(i);
    }
    reducer.finalize();
    for (const std::size_t i : {0, 1, 2}) {
      const auto values = floats(reducer, i);
      sums.insert(sums.end(), values.begin(), values.end());
    }
    return sums;
  }

  const int rank;
  const std::shared_ptr<CompressedReduction> hook;
  Reducer reducer;
};

// The greatest elements of a gradient are not those of its parts, so the sums show which exchange
// was used.
TEST(CombinedExchange, IsChosenInTheStepAfterOneThatGatheredTooMuchWhateverTheBuckets) {
  run_ranks(4, [](Communicator& communicator) {
    const auto run = [&](std::size_t bucket_bytes) {
      const auto hook =
          compressing({.codec = top_k({.density = 0.6, .exact = false}), .rules = {{"w", int8()}}});
      Training training(communicator, hook, bucket_bytes);
      std::vector<Floats> sums;
      for (int step = 0; step < 3; ++step) sums.push_back(training.step(step));
      return sums;
    };
    const auto sums = run(1);
    EXPECT_EQ(run(1 << 20), sums);
    EXPECT_EQ(run(kCount * sizeof(float) + 1), sums);
  });
  run_ranks(4, [](Communicator& communicator) {
    const auto hook = compressing({.codec = threshold({.limit = 0}), .rules = {{"w", int8()}}});
    Training training(communicator, hook, 1 << 20);
    std::vector<double> received;
    for (int step = 0; step < 3; ++step) {
      (void)training.step(step);
      received.push_back(static_cast<double>(hook->last_step().received_bytes));
    }
    const double of_int8 = 3 * kCount * 1.02, one = kCount * sizeof(float);
    EXPECT_NEAR(received[0], of_int8 + 3 * one, 0.1 * one);
    EXPECT_NEAR(received[1], of_int8 + 1.5 * one, 0.15 * one);
    EXPECT_NEAR(received[2], of_int8 + 1.5 * one, 0.15 * one);
    EXPECT_EQ(hook->exchange_reason(),
              "gathered, as was asked for; those without a fixed length are gathered, and combined "
              "in steps after one in which all ranks' messages were 48000 bytes or more");
  });
}

// This happens after a failure: some ranks have ended a step that others have not, or took no part
// in.
TEST(CombinedExchange, IsAgreedOnByRanksThatHaveEndedOtherSteps) {
  run_ranks(4, [](Communicator& communicator) {
    const auto made = [] {
      return compressing({.codec = threshold({.limit = 0}), .rules = {{"w", int8()}}});
    };
    auto hook = made();
    (void)Training(communicator, hook, 1).step(0);
    const double gathered = static_cast<double>(hook->last_step().received_bytes);
    if (communicator.rank() == Rank(2)) hook = made();
    Training training(communicator, hook, 1);
    const Floats sums = training.step(1);
    EXPECT_LT(static_cast<double>(hook->last_step().received_bytes), 0.7 * gathered);
    Floats others = sums;
    communicator.broadcast(others).wait();
    EXPECT_EQ(sums, others);
  });
}

TEST(CombinedExchange, GoesOnWhereItWasSaved) {
  for (const auto& codec :
       {threshold({.limit = 0.1f, .values = ValueFormat::int8}),
        top_k({.density = 0.6, .exact = false}), top_k({.density = 0.2, .exact = false})}) {
    run_ranks(4, [&](Communicator& communicator) {
      const CompressionOptions options{.codec = codec};
      const auto through = compressing(options);
      Training first(communicator, through, 1);
      for (int step = 0; step < 3; ++step) (void)first.step(step);
      const auto restored = compressing(options);
      restored->load(through->save());
      Training second(communicator, restored, 1 << 20);
      for (int step = 3; step < 6; ++step) {
        EXPECT_EQ(second.step(step), first.step(step)) << codec->name() << ", step " << step;
      }
      EXPECT_EQ(restored->save(), through->save());
    });
  }
}

TEST(CombinedExchange, IsPredictedAndSaid) {
  run_ranks(
      4,
      [](Communicator& communicator) {
        const auto hook = compressing(
            {.codec = threshold({.limit = 1}), .exchange = CompressedExchange::automatic});
        const Reducer reducer(communicator, {{"w", DType::f32, 1 << 22}}, {.hook = hook});
        const auto from = hook->exchange_prediction().combines_from;
        ASSERT_TRUE(from.has_value()) << hook->exchange_reason();
        EXPECT_GT(*from, 0u);
        EXPECT_LE(*from, std::uint64_t{4} * 4 << 22);
        EXPECT_TRUE(hook->exchange_reason().starts_with("gathered, and combined in steps after"))
            << hook->exchange_reason();
        const auto fixed = compressing({.exchange = CompressedExchange::automatic});
        const Reducer other(communicator, {{"w", DType::f32, 1 << 22}}, {.hook = fixed});
        const ExchangePrediction& prediction = fixed->exchange_prediction();
        EXPECT_GT(prediction.combined_seconds, prediction.divided_seconds);
        EXPECT_FALSE(prediction.combines_from.has_value() && *prediction.combines_from == 0);
      },
      /*shared_memory=*/false);
}

// Rank 1 takes part by hand, and announces a longer message than there can be.
TEST(CombinedExchange, LengthsThatCannotBeAreRefused) {
  run_ranks(2, [](Communicator& communicator) {
    CompressedReduction hook(
        {.codec = threshold({.limit = 0}), .exchange = CompressedExchange::combine});
    const GradientDescription description{"w", DType::f32, kCount};
    hook.attach(communicator, {&description, 1});
    if (communicator.rank() == Rank(1)) {
      std::vector<std::uint64_t> lengths = {std::uint64_t{1} << 50, 40}, received(2);
      communicator.all_to_all(lengths, received).wait();
      EXPECT_THROW(communicator.barrier().wait(), Error);
      return;
    }
    Floats data(kCount, 1.0f);
    const std::size_t index = 0;
    const View view = view_of(std::span(data));
    expect_contains(message_of<ProtocolError>([&] {
                      (void)hook.start(
                          communicator,
                          {.view = view, .gradients = {&index, 1}, .gradient_views = {&view, 1}});
                    }),
                    "rank 1 announces messages of 1125899906842624 bytes, where at most");
  });
}

// Rank 0 takes part by hand, and says from how many bytes on combining pays.
TEST(CombinedExchange, PredictionsThatCannotBeAreRefused) {
  for (const double from : {-1.0, 1e30, kCount * 4 + 1.0, -double{kNothing}}) {
    run_ranks(2, [&](Communicator& communicator) {
      CompressedReduction hook(
          {.codec = threshold({.limit = 0}), .exchange = CompressedExchange::automatic});
      const GradientDescription description{"w", DType::f32, kCount};
      if (communicator.rank() == Rank(0)) {
        (void)reducer::take_over_together(
            communicator, hook.name(), [] { return reducer::ResumePoint(); }, std::nullopt);
        double said[] = {1, 1, 1, from};
        communicator.broadcast(std::span<double>(said)).wait();
        EXPECT_THROW(communicator.barrier().wait(), Error);
        return;
      }
      expect_contains(message_of<ProtocolError>([&] {
                        hook.attach(communicator, {&description, 1});
                      }),
                      "rank 0 says that combining pays from");
    });
  }
}

// Each part has its own header and at least one value.
TEST(Exchange, PartsThatAreLongerThanTheMessageArePredictedAsLong) {
  run_ranks(
      4,
      [](Communicator& communicator) {
        const auto predicted = [&](double density) {
          const auto hook = compressing(
              {.codec = top_k({.density = density}), .exchange = CompressedExchange::automatic});
          hook->attach(communicator, std::vector<GradientDescription>(
                                         {{.name = "w", .dtype = DType::f32, .count = 4096}}));
          return hook->exchange_prediction();
        };
        // A message has one value, and then four. Its four parts have four values together in both
        // cases.
        EXPECT_EQ(predicted(0.0002).divided_seconds, predicted(0.0009).divided_seconds);
        EXPECT_LT(predicted(0.0002).gathered_seconds, predicted(0.0009).gathered_seconds);
      },
      /*shared_memory=*/false);
}

// The time in which ranks add up parts counts for the codec, and not for the exchange.
TEST(Exchange, NoTimeIsCountedTwice) {
  for (const auto exchange : {CompressedExchange::divide, CompressedExchange::combine}) {
    run_ranks(2, [&](Communicator& communicator, int rank) {
      const auto hook = compressing({.exchange = exchange});
      constexpr std::size_t kMany = 1 << 20;
      Reducer reducer(communicator, {{"w", DType::f32, kMany}}, {.hook = hook});
      std::ranges::copy(gradient_of(rank, 0, kMany), floats(reducer, 0).begin());
      const TimePoint begin = Clock::now();
      reducer.mark_ready(0);
      reducer.finalize();
      const double whole = seconds(Clock::now() - begin);
      const CompressionStatistics& step = hook->last_step();
      EXPECT_LE(step.encode_seconds + step.exchange_seconds + step.decode_seconds, whole);
    });
  }
}

}  // namespace
}  // namespace stretto

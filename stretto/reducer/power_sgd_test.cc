// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients that travel as factors.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/codec/low_rank.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

constexpr std::size_t kRows = 60;
constexpr std::size_t kColumns = 50;

using testing::compressing;
using testing::copy_of;
using testing::floats;
using testing::message_of;

std::shared_ptr<CompressedReduction> factoring(CompressionOptions options = {
                                                   .codec = power_sgd()}) {
  return compressing(std::move(options));
}

std::vector<GradientDescription> model() {
  return {
      {"w", DType::f32, kRows * kColumns, kRows}, {"bias", DType::f32, 7}, {"v", DType::f32, 2000}};
}

// Fills a matrix of rank 1 plus some noise, the same for equal `seed`.
void fill_matrix(std::span<float> values, double noise, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<double>(i / kColumns), column = static_cast<double>(i % kColumns);
    values[i] =
        static_cast<float>(std::sin(row) * std::cos(column) + noise * (random.uniform() - 0.5));
  }
}

void run_step(Reducer& reducer, double noise, std::uint64_t seed) {
  for (std::size_t i = reducer.gradient_count(); i-- > 0;) {
    if (i == 1) std::ranges::fill(floats(reducer, i), 3.0f);
    if (i != 1) fill_matrix(floats(reducer, i), noise, seed + i);
    reducer.mark_ready(i);
  }
  reducer.finalize();
}

TEST(PowerSgd, AMatrixOfItsRankComesThroughAndSmallOnesAsTheyAre) {
  run_ranks(3, [](Communicator& communicator) {
    const auto hook = factoring();
    Reducer reducer(communicator, model(), {.bucket_bytes = {8000}, .hook = hook});
    run_step(reducer, 0, 1);
    std::vector<float> expected(kRows * kColumns);
    fill_matrix(expected, 0, 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(floats(reducer, 0)[i], expected[i], 1e-5) << i;
    }
    for (const float value : floats(reducer, 1)) EXPECT_EQ(value, 3.0f);
    EXPECT_TRUE(hook->residual("bias").empty());
    const CompressionStatistics& step = hook->last_step();
    EXPECT_EQ(step.elements, kRows * kColumns + 2000) << "without the bias";
    EXPECT_EQ(step.sent_values, 2 * (kRows + kColumns) + 2 * (45 + 45));
    EXPECT_EQ(step.message_bytes, step.sent_values * sizeof(float));
    EXPECT_EQ(step.received_bytes, 2 * step.message_bytes * 2 / 3);
    EXPECT_TRUE(step.encode_seconds > 0 && step.exchange_seconds > 0 && step.decode_seconds > 0);
  });
}

// The sums that all ranks have got, plus the residuals that they hold, are the gradients that they
// had. All ranks have the same bits.
TEST(PowerSgd, NothingIsLostAndRanksAgree) {
  constexpr int kSteps = 6;
  std::vector<std::vector<float>> of_rank(2);
  std::vector<std::vector<double>> got(2), left(2);
  run_ranks(2, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank().value());
    const auto hook = factoring({.codec = power_sgd({.rank = 5})});
    Reducer reducer(communicator, model(),
                    {.op = ReduceOp::sum, .bucket_bytes = {8000}, .hook = hook});
    got[rank].resize(kRows * kColumns);
    for (int step = 0; step < kSteps; ++step) {
      run_step(reducer, 1, static_cast<std::uint64_t>(step) + 10 * rank);
      const auto values = floats(reducer, 0);
      of_rank[rank].insert(of_rank[rank].end(), values.begin(), values.end());
      for (std::size_t i = 0; i < values.size(); ++i) got[rank][i] += values[i];
      (void)reducer.rebuild();
    }
    const auto residual = hook->residual("w");
    left[rank].assign(residual.begin(), residual.end());
  });
  EXPECT_EQ(of_rank[0], of_rank[1]);
  std::vector<double> had(kRows * kColumns);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<float> values(had.size());
      fill_matrix(values, 1, step + 10 * rank);
      for (std::size_t i = 0; i < had.size(); ++i) had[i] += values[i];
    }
  }
  for (std::size_t i = 0; i < had.size(); ++i) {
    ASSERT_NEAR(got[0][i] + left[0][i] + left[1][i], had[i], 1e-4) << i;
  }
}

// Runs a step in which rank 1 has `wrong` in the first matrix; returns the error.
std::string step_with(Reducer& reducer, int rank, float wrong) {
  for (std::size_t i = 3; i-- > 0;) {
    std::ranges::fill(floats(reducer, i), 1.0f);
    if (i == 0 && rank == 1) floats(reducer, 0)[5] = wrong;
    reducer.mark_ready(i);
  }
  return message_of<InvalidArgument>([&] { reducer.finalize(); });
}

TEST(PowerSgd, NaNIsSeenByAllAndGoneInTheNextStep) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, model(), {.hook = factoring()});
    (void)step_with(reducer, communicator.rank().value(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(floats(reducer, 0)[0]));
    EXPECT_EQ(floats(reducer, 1)[0], 1.0f);
    run_step(reducer, 0, 1);
    for (const float value : floats(reducer, 0)) ASSERT_TRUE(std::isfinite(value));
  });
}

TEST(PowerSgd, InfinityStopsAllRanksOrCountsAsZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring({.codec = power_sgd(), .non_finite = NonFinite::stop});
    Reducer reducer(communicator, model(), {.hook = hook});
    EXPECT_EQ(step_with(reducer, communicator.rank().value(), kInfinity),
              "gradient w, in step 1: what all ranks have added up holds infinity or NaN, and "
              "NonFinite::stop is set");
  });
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring({.codec = power_sgd(), .non_finite = NonFinite::zero});
    Reducer reducer(communicator, model(), {.hook = hook});
    EXPECT_EQ(step_with(reducer, communicator.rank().value(), -kInfinity), "");
    for (const float value : floats(reducer, 0)) ASSERT_TRUE(std::isfinite(value));
    EXPECT_NEAR(floats(reducer, 0)[5], 0.5f, 1e-3) << "what rank 0 had";
    EXPECT_NEAR(floats(reducer, 0)[6], 1, 1e-3);
    EXPECT_EQ(floats(reducer, 1)[0], 1.0f);
  });
}

// This includes the buckets behind the one that has stopped the step.
TEST(PowerSgd, AStepThatIsStoppedKeepsNoNaN) {
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring({.codec = power_sgd(), .non_finite = NonFinite::stop});
    Reducer reducer(communicator, model(), {.bucket_bytes = {8000}, .hook = hook});
    for (std::size_t i = 3; i-- > 0;) {
      std::ranges::fill(floats(reducer, i), std::numeric_limits<float>::quiet_NaN());
      reducer.mark_ready(i);
    }
    EXPECT_FALSE(message_of<InvalidArgument>([&] { reducer.finalize(); }).empty());
    for (const char* const name : {"w", "v"}) {
      for (const float value : hook->residual(name)) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  });
}

// Such numbers are neither kept for ever nor lost.
TEST(PowerSgd, NumbersTooGreatToBeMultipliedAreSeen) {
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring();
    Reducer reducer(communicator, model(), {.hook = hook});
    for (std::size_t i = 3; i-- > 0;) {
      std::ranges::fill(floats(reducer, i), 1.5e38f);
      reducer.mark_ready(i);
    }
    reducer.finalize();
    EXPECT_TRUE(std::isnan(floats(reducer, 0)[0]));
    EXPECT_EQ(floats(reducer, 1)[0], 1.5e38f) << "travels as it is";
    for (const float left : hook->residual("w")) ASSERT_EQ(left, 0);
  });
}

// One bucket holds gradients of another rank, with a sparse codec, and uncompressed ones.
TEST(PowerSgd, RulesChooseRanksAndCodecsOfGradients) {
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = compressing({.codec = power_sgd({.rank = 1}),
                                   .rules = {{"w*", power_sgd({.rank = 3})}, {"v", top_k()}}});
    Reducer reducer(communicator,
                    {{"w", DType::f32, kRows * kColumns, kRows},
                     {"bias", DType::f32, 7},
                     {"v", DType::f32, 2000},
                     {"u", DType::f32, 1600}},
                    {.hook = hook});
    run_step(reducer, 0, 1);
    EXPECT_EQ(hook->last_step().sent_values, 3 * (kRows + kColumns) + 20 + (40 + 40));
    EXPECT_EQ(floats(reducer, 1)[0], 3.0f);
    EXPECT_EQ(std::ranges::count_if(floats(reducer, 2), [](float value) { return value != 0; }),
              20);
  });
}

TEST(PowerSgd, BeginsAfterDenseStepsAndIsSwitchedLikeACodec) {
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring({.codec = power_sgd({.rank = 1}), .dense_steps = 2});
    Reducer reducer(communicator, model(), {.hook = hook});
    std::vector<float> gradient(2000);
    for (std::uint64_t step = 0; step < 4; ++step) {
      run_step(reducer, 1, step);
      fill_matrix(gradient, 1, step + 2);
      EXPECT_EQ(hook->last_step().compressed, step >= 2);
      EXPECT_EQ(std::ranges::equal(floats(reducer, 2), gradient), step < 2) << step;
    }
  });
  run_ranks(2, [](Communicator& communicator) {
    const auto hook = factoring({.codec = power_sgd(), .compression = Compression::automatic});
    Reducer reducer(communicator, model(), {.hook = hook});
    for (std::uint64_t step = 0; step < 6; ++step) {
      run_step(reducer, 1, step);
      EXPECT_EQ(hook->last_step().compressed, step >= 4) << "the trial";
    }
    EXPECT_EQ(hook->exchange_reason(), "not made: all gradients travel as factors");
  });
}

// Covers any shape, and any magnitude whose products are finite.
TEST(PowerSgd, SentAndLeftAreTheWhole) {
  Random random(5);
  for (int attempt = 0; attempt < 60; ++attempt) {
    const std::size_t rows = 1 + random.below(60), columns = 1 + random.below(60);
    const bool is_matrix = random.below(2) == 0;
    const std::size_t count = rows * columns + (is_matrix ? 0 : random.below(7));
    const std::size_t rank = 1 + random.below(4);
    const int exponent = static_cast<int>(random.below(200)) - 148;
    run_ranks(1, [&](Communicator& communicator) {
      const auto hook = factoring({.codec = power_sgd({.rank = rank}), .min_elements = 1});
      Reducer reducer(communicator, {{"w", DType::f32, count, is_matrix ? rows : 0}},
                      {.hook = hook});
      for (int step = 0; step < 3; ++step) {
        std::vector<float> whole(count);
        std::ranges::copy(hook->residual("w"), whole.begin());
        double squares = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const double unit = random.below(3) == 0 ? 0 : random.uniform() - 0.5;
          floats(reducer, 0)[i] = static_cast<float>(std::ldexp(unit, exponent));
          whole[i] += floats(reducer, 0)[i];
          squares += double{whole[i]} * double{whole[i]};
        }
        reducer.mark_ready(0);
        reducer.finalize();
        const auto left = hook->residual("w");
        const double bound = static_cast<double>(rank) * (0x1p-22 * std::sqrt(squares) + 0x1p-148);
        for (std::size_t i = 0; i < count; ++i) {
          const double kept = left.empty() ? 0 : double{left[i]};
          ASSERT_NEAR(double{floats(reducer, 0)[i]} + kept, double{whole[i]}, bound)
              << rows << " x " << columns << ", rank " << rank << ", 2^" << exponent;
        }
      }
    });
  }
}

TEST(PowerSgd, AGradientThatWasZeroOnceIsSentLater) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, model(), {.hook = factoring()});
    for (std::size_t i = 3; i-- > 0;) {
      std::ranges::fill(floats(reducer, i), 0.0f);
      reducer.mark_ready(i);
    }
    reducer.finalize();
    run_step(reducer, 0, 1);
    std::vector<float> expected(kRows * kColumns);
    fill_matrix(expected, 0, 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(floats(reducer, 0)[i], expected[i], 1e-5) << i;
    }
  });
}

// The right factors that the first half of the columns leaves are orthogonal to the second half.
TEST(PowerSgd, WhatTheFactorsDoNotSeeIsSentInTheNextStep) {
  run_ranks(2, [](Communicator& communicator) {
    const CompressionOptions options{.codec = power_sgd({.rank = 1}), .error_feedback = false};
    Reducer reducer(communicator, {model()[0]}, {.hook = factoring(options)});
    std::vector<float> sent;
    for (const std::size_t first : {0, 25, 25}) {
      std::ranges::fill(floats(reducer, 0), 0.0f);
      for (std::size_t row = 0; row < kRows && communicator.rank() == Rank(0); ++row) {
        std::ranges::fill(floats(reducer, 0).subspan(row * kColumns + first, kColumns / 2), 1.0f);
      }
      reducer.mark_ready(0);
      reducer.finalize();
      sent.push_back(floats(reducer, 0)[first]);
    }
    EXPECT_NEAR(sent[0], 0.5, 1e-5);
    EXPECT_EQ(sent[1], 0);
    EXPECT_NEAR(sent[2], 0.5, 1e-5);
  });
}

// The right factors of the first bucket follow its left factors when the second bucket is full, not
// at the end of the step.
TEST(PowerSgd, ItsAllReducesBeginWhileBackwardRuns) {
  run_ranks(2, [](Communicator& communicator) {
    std::vector<GradientDescription> matrices;
    for (const char* name : {"a", "b", "c"}) {
      matrices.push_back({.name = name, .count = kRows * kColumns, .rows = kRows});
    }
    Reducer reducer(communicator, matrices, {.bucket_bytes = {8000}, .hook = factoring()});
    const auto operations_before = [&] {
      Work barrier = communicator.barrier();
      barrier.wait();
      return barrier.number();
    };
    for (std::size_t i = 0; i < 3; ++i) fill_matrix(floats(reducer, i), 1, i);
    const auto first = operations_before();
    reducer.mark_ready(2);
    reducer.mark_ready(1);
    EXPECT_EQ(operations_before() - first, 1u + 3) << "left, right and left factors";
    reducer.mark_ready(0);
    reducer.finalize();
  });
}

TEST(PowerSgd, GoesOnBitForBitWhereItWasSaved) {
  run_ranks(2, [](Communicator& communicator) {
    const auto seed = static_cast<std::uint64_t>(10 * communicator.rank().value());
    const auto values_after = [&](Reducer& reducer, std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t step = first; step < last; ++step) run_step(reducer, 1, seed + step);
      return copy_of(floats(reducer, 0));
    };
    const auto through = factoring();
    Reducer reducer(communicator, model(), {.hook = through});
    (void)values_after(reducer, 0, 3);
    const std::vector<std::byte> state = through->save();
    const auto resumed = factoring();
    resumed->load(state);
    EXPECT_EQ(resumed->save(), state);
    Reducer other(communicator, model(), {.hook = resumed});
    EXPECT_EQ(values_after(reducer, 3, 5), values_after(other, 3, 5));
    const auto of_others = compressing();
    { Reducer sparse(communicator, model(), {.hook = of_others}); }
    EXPECT_THROW(through->load(of_others->save()), InvalidArgument);
    const std::vector<std::vector<std::byte>> both(2, state);
    EXPECT_THROW((void)CompressedReduction::redistribute(both, 3), InvalidArgument);
  });
}

TEST(PowerSgd, AnotherNumberOfRanksGoesOnWithAllThatWasNotSent) {
  std::vector<std::vector<std::byte>> states(2);
  std::vector<float> left(kRows * kColumns);
  run_ranks(2, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank().value());
    const auto hook = factoring();
    Reducer reducer(communicator, model(), {.hook = hook});
    run_step(reducer, 1, rank);
    states[rank] = hook->save();
    for (std::size_t turn = 0; turn < 2; ++turn) {
      for (std::size_t i = 0; turn == rank && i < left.size(); ++i) {
        left[i] += hook->residual("w")[i];
      }
      communicator.barrier().wait();
    }
  });
  states = CompressedReduction::redistribute(states, 3);
  std::vector<std::vector<float>> reduced(3);
  run_ranks(3, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank().value());
    const auto hook = factoring();
    hook->load(states[rank]);
    Reducer reducer(communicator, model(), {.hook = hook});
    const auto residual = hook->residual("w");
    for (std::size_t i = 0; i < left.size(); ++i) {
      EXPECT_FLOAT_EQ(residual[i], rank == 0 ? left[i] * 3 / 2 : 0) << "of a mean of three";
    }
    run_step(reducer, 1, rank);
    reduced[rank] = copy_of(floats(reducer, 0));
  });
  EXPECT_EQ(reduced[0], reduced[1]);
  EXPECT_EQ(reduced[0], reduced[2]);
}

TEST(PowerSgd, AStateThatOneRankCannotUseIsRefusedOnAllUntilAnotherIsLoaded) {
  std::vector<std::byte> of_rank_0;
  run_ranks(3, [&](Communicator& communicator) {
    const bool is_first = communicator.rank() == Rank(0), is_last = communicator.rank() == Rank(2);
    const auto saved = factoring();
    { Reducer reducer(communicator, model(), {.hook = saved}); }
    if (is_first) of_rank_0 = saved->save();
    communicator.barrier().wait();
    const auto hook = factoring();
    hook->load(is_last ? of_rank_0 : saved->save());
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::string text = testing::error_of<InvalidArgument>(
          [&] { Reducer reducer(communicator, model(), {.hook = hook}); });
      expect_contains(text, is_last
                                ? "was saved by rank 0 of 3, and this is rank 2 of 3"
                                : "rank 2 cannot use the hook, or the state that it has loaded");
    }
    hook->load(saved->save());
    Reducer reducer(communicator, model(), {.hook = hook});
    run_step(reducer, 0, 1);
  });
}

// The number of factors does not fit into 64 bits.
TEST(PowerSgd, AGradientTravelsAsItIsWhereTheRankIsFarTooGreat) {
  for (const std::size_t rank : {std::size_t{1} << 62, std::size_t{1} << 63}) {
    run_ranks(2, [&](Communicator& communicator) {
      const auto hook = factoring({.codec = power_sgd({.rank = rank})});
      Reducer reducer(communicator, {{"w", DType::f32, 64 * 64, 64}}, {.hook = hook});
      EXPECT_TRUE(hook->residual("w").empty());
    });
  }
}

TEST(PowerSgd, ARankWithoutMeaningIsRefused) {
  EXPECT_THROW((void)power_sgd({.rank = 0}), InvalidArgument);
  // Ranks that agree on the name agree on the rank.
  EXPECT_EQ(power_sgd({.rank = 3})->name(), "power_sgd(3)");
}

TEST(LowRank, ColumnsBecomeOrthonormalAndDependentOnesZero) {
  constexpr std::size_t kRank = 3, kCount = 40;
  Random random(3);
  std::vector<float> left(kCount * kRank);
  for (std::size_t row = 0; row < kCount; ++row) {
    left[row * kRank] = static_cast<float>(random.uniform());
    left[row * kRank + 1] = 2 * left[row * kRank];
    left[row * kRank + 2] = static_cast<float>(random.uniform());
  }
  codec::orthonormalize(kCount, kRank, left);
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t row = 0; row < kCount; ++row) {
      sum += double{left[row * kRank + a]} * double{left[row * kRank + b]};
    }
    return sum;
  };
  EXPECT_NEAR(dot(0, 0), 1, 1e-6);
  EXPECT_EQ(dot(1, 1), 0);
  EXPECT_NEAR(dot(2, 2), 1, 1e-6);
  EXPECT_NEAR(dot(0, 2), 0, 1e-6);
}

// The vector does not fill its matrix, which has more columns than one group.
TEST(LowRank, ProductsAreThoseOfTheDefinition) {
  constexpr std::size_t kCount = 107, kRank = 6;
  const codec::MatrixShape shape = codec::matrix_shape(kCount, 0);
  EXPECT_EQ(shape.rows, 11u);
  EXPECT_EQ(shape.columns, 10u);
  EXPECT_EQ(codec::matrix_shape(kCount, 1).rows, 1u);
  Random random(4);
  const auto drawn = [&](std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random.below(5)) - 2;
    return values;
  };
  const std::vector<float> matrix = drawn(kCount), right = drawn(shape.columns * kRank);
  const std::vector<float> factor = drawn(shape.rows * kRank);
  std::vector<float> left(shape.rows * kRank), other(shape.columns * kRank), product(kCount);
  codec::multiply(matrix, shape, kRank, right, left);
  codec::multiply_transposed(matrix, shape, kRank, factor, other);
  codec::add_product(product, shape, kRank, factor, right, 2);
  std::vector<float> left_sum(left.size()), other_sum(other.size());
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t row = i / shape.columns, column = i % shape.columns;
    float sum = 0;
    for (std::size_t c = 0; c < kRank; ++c) {
      left_sum[row * kRank + c] += matrix[i] * right[c * shape.columns + column];
      other_sum[c * shape.columns + column] += matrix[i] * factor[row * kRank + c];
      sum += 2 * factor[row * kRank + c] * right[c * shape.columns + column];
    }
    EXPECT_EQ(product[i], sum);
  }
  EXPECT_EQ(left, left_sum);
  EXPECT_EQ(other, other_sum);
}

}  // namespace
}  // namespace stretto

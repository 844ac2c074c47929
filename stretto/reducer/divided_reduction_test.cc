// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/divided_reduction.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/reducer.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

template <class Number>
std::span<Number> numbers(const Reducer& reducer, std::size_t index) {
  const auto bytes = reducer.gradient_bytes(index);
  return {reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

// Returns the mean that all ranks get if rank r has `values[r]` in each element.
template <class Number>
Number mean_of(const std::vector<Number>& values, const ReducerOptions& options) {
  std::vector<Number> results(values.size());
  run_ranks(static_cast<int>(values.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    ReducerOptions own = options;
    // Each rank needs its own hook.
    if (options.hook->name() == "f16, then plain") own.hook = std::make_shared<F16Reduction>();
    Reducer reducer(communicator, {{"g", dtype_of<Number>, 37}}, own);
    for (int step = 0; step < 2; ++step) {
      for (Number& number : numbers<Number>(reducer, 0)) number = values[rank];
      reducer.mark_ready(0);
      reducer.finalize();
    }
    results[rank] = numbers<Number>(reducer, 0)[36];
  });
  for (const Number& result : results) {
    EXPECT_EQ(std::memcmp(&result, &results[0], sizeof(Number)), 0) << "the same bits on all ranks";
  }
  return results[0];
}

constexpr MeanDivision kDivisions[] = {MeanDivision::after_sum, MeanDivision::before_sum,
                                       MeanDivision::half_each};

TEST(MeanDivision, AllComputeTheMean) {
  for (const MeanDivision division : kDivisions) {
    SCOPED_TRACE(name(division));
    const ReducerOptions options{.mean_division = division};
    EXPECT_EQ(mean_of<float>({1, 2, 3, 6}, options), 3.0f);
    EXPECT_EQ(mean_of<double>({1, 2, 6}, options), 3.0);
    EXPECT_EQ(mean_of<BFloat16>({BFloat16(1.0f), BFloat16(4.0f)}, options), BFloat16(2.5f));
    EXPECT_EQ(mean_of<std::complex<float>>({{1, 2}, {3, 6}}, options), std::complex<float>(2, 4));
    EXPECT_EQ(mean_of<std::int32_t>({3, 4}, options), 3) << "integers are divided once";
    EXPECT_EQ(mean_of<float>({5}, options), 5.0f) << "one rank";
    EXPECT_EQ(mean_of<float>({1, 2}, {.op = ReduceOp::sum, .mean_division = division}), 3.0f);
  }
}

TEST(MeanDivision, BeforeTheSumIsPyTorchsRounding) {
  const std::vector<float> values = {0.1f, 0.7f, -3.3f};
  const float third = 1.0f / 3;
  float expected = 0;
  for (const float value : values) expected += value * third;
  EXPECT_EQ(mean_of<float>(values, {.mean_division = MeanDivision::before_sum}), expected);
}

// The sum is too large for the type, but the mean is not.
TEST(MeanDivision, TheSumOverflowsOnlyWhereItIsFormedUndivided) {
  const std::vector<float> values = {3e38f, 2e38f};
  EXPECT_TRUE(std::isinf(mean_of<float>(values, {.mean_division = MeanDivision::after_sum})));
  EXPECT_EQ(mean_of<float>(values, {.mean_division = MeanDivision::before_sum}), 2.5e38f);
  const std::vector<float> four = {1.5e38f, 1.5e38f, 1.5e38f, 1.5e38f};
  EXPECT_TRUE(std::isinf(mean_of<float>(four, {.mean_division = MeanDivision::after_sum})));
  EXPECT_EQ(mean_of<float>(four, {.mean_division = MeanDivision::half_each}), 1.5e38f);
}

// 98304 is too large for f16. 1e-7 is nearly too small: a quarter of it becomes 0.
TEST(MeanDivision, HalfEachKeepsBothEndsOfTheRangeOfF16) {
  const auto mean = [](const std::vector<float>& values, MeanDivision division) {
    return mean_of<float>(values,
                          {.mean_division = division, .hook = std::make_shared<F16Reduction>()});
  };
  const std::vector<float> one_large = {98304, 0, 0, 0};
  EXPECT_TRUE(std::isinf(mean(one_large, MeanDivision::after_sum)));
  EXPECT_EQ(mean(one_large, MeanDivision::before_sum), 24576.0f);
  EXPECT_EQ(mean(one_large, MeanDivision::half_each), 24576.0f);
  const std::vector<float> all_small(4, 1e-7f);
  EXPECT_EQ(mean(all_small, MeanDivision::before_sum), 0.0f);
  EXPECT_GT(mean(all_small, MeanDivision::half_each), 0.0f);
}

TEST(MeanDivision, UnusedGradientsKeepTheirBits) {
  run_ranks(3, [](Communicator& communicator) {
    Reducer reducer(communicator, {{"a", DType::f32, 1}, {"b", DType::f32, 1}},
                    {.find_unused = true, .mean_division = MeanDivision::before_sum});
    numbers<float>(reducer, 0)[0] = 0.1f;
    numbers<float>(reducer, 1)[0] = 3;
    reducer.mark_ready(1);
    reducer.finalize();
    EXPECT_EQ(numbers<float>(reducer, 0)[0], 0.1f);
    EXPECT_FLOAT_EQ(numbers<float>(reducer, 1)[0], 3);
  });
}

TEST(MeanDivision, TheHookSaysWhatItDoes) {
  const DividedReduction hook(MeanDivision::half_each, std::make_shared<Bf16Reduction>());
  EXPECT_EQ(hook.name(), "mean divided half_each, then bf16, then plain");
}

}  // namespace
}  // namespace stretto

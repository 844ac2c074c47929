// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "bench/drivers/pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/expect_contains.h"

namespace stretto::bench {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kShare = 1000;
constexpr std::size_t kCount = kRanks * kShare;
constexpr std::uint64_t kIteration = 5;

class PatternTest : public testing::TestWithParam<const char*> {
 protected:
  PatternTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      fill_input(job(rank, outputs_[rank]), rank, kRanks, kIteration);
    }
    for (int rank = 0; rank < kRanks; ++rank) run(rank);
  }

  Job job(int rank, std::vector<float>& output) {
    inputs_[rank].resize(kCount);
    output.resize(kCount);
    return {.operation = GetParam(),
            .algorithm = {},
            .input = inputs_[rank].data(),
            .output = output.data(),
            .count = kCount,
            .share = kShare};
  }
  // The operation, written down once more.
  void run(int rank) {
    const std::string operation = GetParam();
    std::vector<float>& output = outputs_[rank];
    const std::size_t own = static_cast<std::size_t>(rank) * kShare;
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t from = i / kShare;
      if (operation == "all_gather") output[i] = inputs_[from][i % kShare];
      if (operation == "all_to_all") output[i] = inputs_[from][own + i % kShare];
      if (operation == "broadcast") output[i] = inputs_[0][i];
      if (operation == "copy") output[i] = inputs_[rank][i];
      for (const auto& input : inputs_) {
        if (operation == "all_reduce") output[i] += input[i];
        if (operation == "reduce_scatter" && i < kShare) output[i] += input[own + i];
      }
    }
  }
  bool is_right(int rank, std::uint64_t iteration = kIteration) {
    return output_is_right(job(rank, outputs_[rank]), rank, kRanks, iteration, problem_);
  }

  std::vector<float> inputs_[kRanks];
  std::vector<float> outputs_[kRanks];
  std::string problem_;
};

TEST_P(PatternTest, AcceptsTheResult) {
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(is_right(rank)) << problem_;
}

TEST_P(PatternTest, FindsOneWrongElement) {
  outputs_[1][kShare - 1] += 1;
  EXPECT_FALSE(is_right(1));
  expect_contains(problem_, "element 999 is");
}

TEST_P(PatternTest, FindsTheResultOfTheIterationBefore) {
  EXPECT_FALSE(is_right(0, kIteration + 1));
}

TEST_P(PatternTest, FindsDataInAnotherPlace) {
  std::swap_ranges(outputs_[2].begin(), outputs_[2].begin() + 256, outputs_[2].begin() + 256);
  EXPECT_FALSE(is_right(2));
}

INSTANTIATE_TEST_SUITE_P(Operations, PatternTest,
                         testing::Values("all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                         "broadcast", "copy"));

}  // namespace
}  // namespace stretto::bench

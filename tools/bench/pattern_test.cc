// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/view.h"

namespace stretto::bench {
namespace {

constexpr int kRanks = 4;
constexpr int kRoot = 1;
constexpr std::size_t kShare = 256;  // A power of two, like most that are measured.
constexpr std::uint64_t kIteration = 5;

class PatternTest : public ::testing::TestWithParam<Collective> {
 protected:
  std::vector<float> input_of(int rank, std::size_t first, std::size_t count) const {
    std::vector<float> values(count);
    pattern_.fill(as_output(values), first, rank, kIteration);
    return values;
  }

  // Computes the expected output in a second way.
  std::vector<float> output_of(int rank) const {
    const std::size_t own = static_cast<std::size_t>(rank) * kShare;
    if (GetParam() == Collective::scatter) return input_of(kRoot, own, kShare);
    std::vector<float> output;
    for (int source = 0; source < kRanks; ++source) {
      const std::vector<float> values = input_of(source, own, kShare);
      if (GetParam() == Collective::all_to_all) {
        output.insert(output.end(), values.begin(), values.end());
        continue;
      }
      output.resize(kShare);
      for (std::size_t i = 0; i < kShare; ++i) output[i] += values[i];
    }
    return output;
  }

  const Pattern pattern_{DType::f32, ReduceOp::sum, kRanks};
};

TEST_P(PatternTest, AcceptsTheResultOfTheRankAndOfNoOther) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> output = output_of(rank);
    for (int other = 0; other < kRanks; ++other) {
      EXPECT_EQ(pattern_.is_output(GetParam(), as_input(output), kShare, other, kIteration, kRoot),
                rank == other)
          << rank << " " << other;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, PatternTest,
                         ::testing::Values(Collective::reduce_scatter, Collective::scatter,
                                           Collective::all_to_all));

}  // namespace
}  // namespace stretto::bench

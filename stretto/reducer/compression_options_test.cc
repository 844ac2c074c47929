// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What CompressionOptions do to gradients before they are encoded, on a few elements: what becomes
// of each can be told.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

// The sum of one gradient of all ranks, step by step.
class Steps {
 public:
  Steps(Communicator& communicator, const CompressionOptions& options, std::size_t count)
      : reducer_(communicator, {{.name = "x", .count = count}},
                 {.op = ReduceOp::sum, .hook = std::make_shared<CompressedReduction>(options)}) {}

  Floats sum_of(const Floats& own) {
    auto* const values = reinterpret_cast<float*>(reducer_.gradient_bytes(0).data());
    std::ranges::copy(own, values);
    reducer_.mark_ready(0);
    reducer_.finalize();
    return {values, values + own.size()};
  }

 private:
  Reducer reducer_;
};

// One rank and a codec that sends every other element.
TEST(CompressionOptions, MomentumIsAddedBeforeAndBeginsAnewWhereSent) {
  for (const bool masked : {true, false}) {
    run_ranks(1, [&](Communicator& communicator) {
      CompressionOptions options{
          .codec = top_k({.density = 0.5}), .min_elements = 1, .momentum = 0.5f};
      if (masked) options.mask_momentum = true;
      Steps steps(communicator, options, 2);
      EXPECT_EQ(steps.sum_of({4, 1}), (Floats{4, 0}));
      // Of the second element: 1 stayed, and 1 + 0.5 was added to that.
      EXPECT_EQ(steps.sum_of({0, 1}), (Floats{0, 2.5f}));
      // What was sent has stopped moving, or goes on: 4 / 4 + 4 / 2, and 1.5 / 2.
      EXPECT_EQ(steps.sum_of({0, 0}), masked ? (Floats{0, 0}) : (Floats{3, 0}));
    });
  }
}

TEST(CompressionOptions, DenseStepsGoOnWithTheSameMomentum) {
  run_ranks(1, [&](Communicator& communicator) {
    Steps steps(communicator,
                {.min_elements = 1, .momentum = 0.5f, .compression = Compression::never}, 1);
    EXPECT_EQ(steps.sum_of({4}), (Floats{4}));
    EXPECT_EQ(steps.sum_of({0}), (Floats{2}));
    EXPECT_EQ(steps.sum_of({0}), (Floats{1}));
  });
}

TEST(CompressionOptions, ClipsWhatOneRankAdds) {
  run_ranks(4, [](Communicator& communicator) {
    Steps steps(communicator, {.codec = top_k({.density = 1}), .min_elements = 1, .clip_norm = 10},
                2);
    const Floats sum =
        steps.sum_of(communicator.rank() == Rank(0) ? Floats{30, 40} : Floats{0.5f, 0});
    EXPECT_FLOAT_EQ(sum[0], 3 + 1.5f);
    EXPECT_FLOAT_EQ(sum[1], 4);
  });
}

TEST(CompressionOptions, MomentumDoesNotKeepNaN) {
  run_ranks(2, [](Communicator& communicator) {
    Steps steps(communicator,
                {.codec = top_k({.density = 0.5}), .min_elements = 1, .momentum = 0.9f}, 2);
    EXPECT_TRUE(std::isnan(steps.sum_of({std::numeric_limits<float>::quiet_NaN(), 1})[0]));
    for (int step = 0; step < 3; ++step) {
      for (const float value : steps.sum_of({1, 1})) EXPECT_TRUE(std::isfinite(value));
    }
  });
}

}  // namespace
}  // namespace stretto

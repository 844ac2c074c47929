// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "tests/support/reducer_case.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

// Runs on shared memory, with real threads that may interfere; tests/simulation covers networks.
TEST(ReducerProperty, StepsEqualTheSerialOracle) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto drawn = testing::ReducerCase::draw(seed, 1);
    run_ranks(drawn.ranks, [&](Communicator& communicator) {
      EXPECT_EQ(testing::train(communicator, drawn), "") << "seed " << seed;
    });
  }
}

}  // namespace
}  // namespace stretto

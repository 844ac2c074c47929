// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "tests/support/reducer_case.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

// On shared memory, with all that threads can do to each other; tests/simulation has networks.
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

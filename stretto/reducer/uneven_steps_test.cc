// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/uneven_steps.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace stretto::reducer {
namespace {

using Phase = UnevenSteps::Phase;

TEST(UnevenSteps, WhoHasNoDataFollowsUntilNobodyHas) {
  run_ranks(3, [](Communicator& communicator) {
    UnevenSteps steps(communicator);
    const int own = communicator.rank().value() + 1;  // Steps: one, two, three.
    for (int step = 0; step < own; ++step) {
      steps.announce(Phase::buffers);
      EXPECT_EQ(steps.leader(), Rank(step));
      EXPECT_EQ(steps.ranks_with_data(), 3 - step);
      steps.announce(Phase::gradients);
    }
    std::vector<Phase> heard;
    do {
      heard.push_back(steps.listen());
    } while (heard.back() != Phase::finished);
    EXPECT_EQ(heard.size(), static_cast<std::size_t>(2 * (3 - own) + 1));
    EXPECT_EQ(steps.leader(), Rank(2)) << "the last that had data";
  });
}

TEST(UnevenSteps, RanksWithDataMustDoTheSame) {
  run_ranks(3, [](Communicator& communicator) {
    UnevenSteps steps(communicator);
    const int rank = communicator.rank().value();
    if (rank == 0) {
      EXPECT_THROW((void)steps.listen(), Mismatch);
    } else {
      EXPECT_THROW(steps.announce(rank == 1 ? Phase::buffers : Phase::gradients), Mismatch);
    }
  });
}

}  // namespace
}  // namespace stretto::reducer

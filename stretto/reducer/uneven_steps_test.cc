// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/uneven_steps.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto::reducer {
namespace {

using Phase = UnevenSteps::Phase;

TEST(UnevenSteps, WhoHasNoDataFollowsUntilNobodyHas) {
  run_ranks(3, [](Communicator& communicator) {
    UnevenSteps steps(communicator);
    const int own = communicator.rank().value() + 1;  // Rank r has r + 1 steps.
    for (int step = 0; step < own; ++step) {
      steps.announce(Phase::buffers, 7);
      EXPECT_EQ(steps.leader(), Rank(step));
      EXPECT_EQ(steps.ranks_with_data(), 3 - step);
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(steps.has_data(rank), rank >= step);
      steps.announce(Phase::gradients, 8);
    }
    for (int step = own; step < 3; ++step) {
      EXPECT_EQ(steps.listen(), (UnevenSteps::Announcement{Phase::buffers, 7}));
      EXPECT_EQ(steps.listen(), (UnevenSteps::Announcement{Phase::gradients, 8}));
    }
    EXPECT_EQ(steps.listen().phase, Phase::finished);
    EXPECT_EQ(steps.leader(), Rank(2)) << "the last that had data";
  });
}

TEST(UnevenSteps, RanksWithDataMustDoTheSame) {
  const auto text_of = [](UnevenSteps::Announcement one, UnevenSteps::Announcement other) {
    std::string text;
    run_ranks(3, [&](Communicator& communicator, int rank) {
      UnevenSteps steps(communicator);
      if (rank == 0) {
        text = testing::message_of<Mismatch>([&] { (void)steps.listen(); });
      } else {
        const auto& [phase, number, what] = rank == 1 ? one : other;
        EXPECT_THROW(steps.announce(phase, number, what), Mismatch);
      }
    });
    return text;
  };
  expect_contains(text_of({Phase::buffers, 1}, {Phase::gradients, 1}),
                  "one is about to run a forward pass of model 1 and the other one a backward");
  expect_contains(text_of({Phase::gradients, 1}, {Phase::gradients, 2}),
                  "a backward pass of model 2");
  expect_contains(text_of({Phase::joinable, 0, 3}, {Phase::joinable, 0, 4}),
                  "one is about to run operation 3 of joinable 0 and the other one operation 4 of "
                  "joinable 0");
}

TEST(UnevenSteps, WhatOthersDoUnannouncedIsExplained) {
  run_ranks(2, [](Communicator& communicator) {
    UnevenSteps steps(communicator);
    if (communicator.rank() == Rank(1)) {
      EXPECT_THROW(communicator.barrier().wait(), Mismatch);
      return;
    }
    expect_contains(testing::message_of<Mismatch>([&] { (void)steps.listen(); }),
                    "only the models that are joined may communicate");
  });
}

}  // namespace
}  // namespace stretto::reducer

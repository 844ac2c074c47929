// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Ranks that agree about an operation pay nothing for finding that out: a collective sends the
// messages of its schedule and no other, in its first call and in later ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "stretto/schedule/algorithms.h"
#include "tests/simulation/simulation.h"
#include "tests/support/problem.h"

namespace stretto::simulation {
namespace {

constexpr int kRanks = 5;
constexpr Rank kRoot = 2;

std::uint64_t messages_of(const schedule::Algorithm& algorithm) {
  std::uint64_t messages = 0;
  for (const schedule::Schedule& steps : algorithm.build_all(kRanks, kRoot)) {
    messages += static_cast<std::uint64_t>(
        std::ranges::count(steps.steps, schedule::StepKind::send, &schedule::Step::kind));
  }
  return messages;
}

class Frames : public ::testing::TestWithParam<schedule::Algorithm> {};

// Buffers are so small that no message is announced first and none is cut.
TEST_P(Frames, ACollectiveSendsWhatItsScheduleSaysAndNothingElse) {
  const schedule::Algorithm& algorithm = GetParam();
  testing::Problem problem{.collective = algorithm.collective,
                           .ranks = kRanks,
                           .root = kRoot,
                           .count = 8 * kRanks,
                           .algorithm = std::string(algorithm.name)};
  if (has_shares(algorithm.collective)) problem = testing::with_equal_shares(problem, 8);
  const testing::Oracle oracle(problem);
  std::vector<std::unique_ptr<testing::Trial>> trials;
  Simulation simulation({.ranks = kRanks, .seed = 7});
  simulation.run();
  for (const int time : {1, 2, 3}) {
    const std::uint64_t before = simulation.network().frames();
    for (int rank = 0; rank < kRanks; ++rank) {
      simulation.submit(rank, [&](Communicator& comm) {
        return trials.emplace_back(std::make_unique<testing::Trial>(comm, oracle))->start();
      });
    }
    simulation.run();
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto outcome = simulation.outcomes(rank).back();
      ASSERT_TRUE(outcome && outcome->ok()) << (outcome ? outcome->message() : "has not ended");
    }
    EXPECT_EQ(simulation.network().frames() - before, messages_of(algorithm)) << "time " << time;
  }
}

std::vector<schedule::Algorithm> by_messages() {
  std::vector<schedule::Algorithm> list;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.access == schedule::Access::messages) list.push_back(algorithm);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(, Frames, ::testing::ValuesIn(by_messages()), [](const auto& tested) {
  return std::string(name(tested.param.collective)) + "_" + std::string(tested.param.name);
});

}  // namespace
}  // namespace stretto::simulation

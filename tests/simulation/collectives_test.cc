// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random collectives on simulated networks, against a serial oracle. Every seed is a world of its
// own; STRETTO_SIMULATION_SEED, _SEEDS and _RANKS choose which are run.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/seeded_run.h"

namespace stretto::simulation {
namespace {

class CollectiveSimulation : public ::testing::TestWithParam<int> {};

TEST_P(CollectiveSimulation, EqualsTheSerialOracle) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    SeededRun run(seed, {});
    run.go();
    const std::string failure = run.failure();
    ASSERT_EQ(failure, "") << run.describe() << "\n"
                           << replay_command("Seeds/*.EqualsTheSerialOracle*", seed);
  }
}

// Something happens to a rank at some moment. On all ranks that are left, operations must end, with
// the right result or with an error that says what has happened.
void expect_told(SeededRun::Event event, int group, const std::string& filter) {
  for (const std::uint64_t seed : seeds_of(group)) {
    SeededRun run(seed, {.event = event});
    if (run.size() == 1) continue;
    run.go();
    const std::string failure = run.failure_after_event();
    ASSERT_EQ(failure, "") << run.describe() << "\n" << replay_command(filter, seed);
  }
}

TEST_P(CollectiveSimulation, AKilledRankIsNamedByAllOthers) {
  expect_told(SeededRun::Event::kill, GetParam(), "Seeds/*.AKilledRank*");
}

TEST_P(CollectiveSimulation, ACutLinkIsNamedByAll) {
  expect_told(SeededRun::Event::cut, GetParam(), "Seeds/*.ACutLink*");
}

TEST_P(CollectiveSimulation, ADisagreementIsToldToAll) {
  expect_told(SeededRun::Event::disagree, GetParam(), "Seeds/*.ADisagreement*");
}

INSTANTIATE_TEST_SUITE_P(Seeds, CollectiveSimulation, testing::Range(0, kSeedGroups));

// A replay of one seed relies on this.
TEST(SeedSimulation, TheSameSeedIsTheSameRun) {
  const auto trace = [](std::uint64_t seed) {
    constexpr int kRanks = 3;
    RankVector<std::vector<float>> data(kRanks, std::vector<float>(5000));
    Simulation simulation({.ranks = kRanks, .seed = seed});
    for (int r = 0; r < kRanks; ++r) {
      simulation.submit(r, [&own = data[r]](Communicator& comm) { return comm.all_reduce(own); });
    }
    simulation.run();
    return std::pair(simulation.turns(), simulation.network().now());
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

TEST(SeedSimulation, RanksKnowTheirHostsWhichSeedsDraw) {
  Simulation simulation({.ranks = 3, .seed = 1, .hosts = {0, 1, 0}});
  for (int r = 0; r < 3; ++r) {
    simulation.submit(r, [](Communicator& comm) {
      EXPECT_EQ(comm.hosts(), (std::vector<std::int32_t>{0, 1, 0}));
      return comm.barrier();
    });
  }
  simulation.run();
  int on_several = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string drawn = SeededRun(seed, {}).describe();
    on_several += drawn.find("on hosts") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(on_several, 5);
  EXPECT_LT(on_several, 20);
}

// These are more ranks than seeds draw. Each pair of ranks takes 2 to 3 KiB of memory.
TEST(ManyRanksSimulation, EqualTheSerialOracleAndNameAKilledRank) {
  constexpr int kRanks = 200;
  for (const std::uint64_t seed : {8, 12}) {
    SeededRun run(seed, {.ranks = kRanks});
    run.go();
    ASSERT_EQ(run.failure(), "") << run.describe();
    SeededRun killed(seed, {.event = SeededRun::Event::kill, .ranks = kRanks});
    killed.go();
    ASSERT_EQ(killed.failure_after_event(), "") << killed.describe();
  }
}

// Shows that the tests above could fail. One wrong bit or one lost message anywhere must be
// noticed: by a wrong result, by an error, or by ranks of which none can move any more.
void expect_caught(transport::sim::Wire::Fault fault) {
  int struck = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SeededRun run(seed, {.fault = fault});
    run.go();
    if (!run.struck()) continue;
    ++struck;
    EXPECT_NE(run.failure(), "") << "seed " << seed << ": " << run.describe();
  }
  EXPECT_GT(struck, 30);
}

TEST(SimulationCanary, AFlippedBitIsCaught) { expect_caught(transport::sim::Wire::Fault::flip); }

TEST(SimulationCanary, ALostMessageIsCaught) { expect_caught(transport::sim::Wire::Fault::loss); }

}  // namespace
}  // namespace stretto::simulation

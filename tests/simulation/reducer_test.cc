// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random steps of random reducers on simulated networks, against a serial oracle. Every seed is a
// world of its own; STRETTO_SIMULATION_SEED and _SEEDS choose which are run.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/reducer/reducer.h"
#include "tests/simulation/seeded_run.h"
#include "tests/support/reducer_case.h"

namespace stretto::simulation {
namespace {

using testing::ReducerCase;
using testing::ReducerTrainer;

// Runs a program on each rank of a simulation. Returns, by rank, what each program returns or
// throws.
using Program = std::function<std::string(Communicator&)>;
std::vector<std::string> run_all(Simulation& simulation, const Program& program) {
  RankVector<std::string> said(simulation.size());
  simulation.run([&](Communicator& communicator) {
    std::string& own = said[communicator.rank()];
    try {
      own = program(communicator);
    } catch (const std::exception& error) {
      own = error.what();
    }
  });
  if (simulation.was_stuck()) said.front() += "; ranks waited when nothing could move any more";
  return said;
}

std::string first_failure(const std::vector<std::string>& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (!said[rank].empty()) return fmt::format("rank {}: {}", rank, said[rank]);
  }
  return {};
}

class ReducerSimulation : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ReducerSimulation, ::testing::Range(0, kSeedGroups));

// These run a fifth of the seeds.
class ReducerEventSimulation : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ReducerEventSimulation, ::testing::Range(0, kSeedGroups / 5));

TEST_P(ReducerSimulation, StepsEqualTheSerialOracle) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const ReducerCase drawn = ReducerCase::draw(seed, 1);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      return testing::train(communicator, drawn);
    });
    ASSERT_EQ(first_failure(said), "")
        << replay_command("Seeds/ReducerSimulation.StepsEqual*", seed);
  }
}

// A rank gives up somewhere in a backward pass and does nothing more. All others are told so in
// that step, wherever they are in it; or at the end of the step before, if the failing rank was
// faster.
TEST_P(ReducerEventSimulation, AFailureInMidBackwardIsToldToAllRanks) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const ReducerCase drawn = ReducerCase::draw(seed, 2);
    Random random(seed + 1'000'000);
    const auto failing = static_cast<int>(random.below(static_cast<std::uint64_t>(drawn.ranks)));
    const std::size_t last_step = random.below(drawn.steps.size());
    const std::size_t made = random.below(drawn.gradients.size() + 1);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      ReducerTrainer trainer(communicator, drawn);
      const bool fails = communicator.rank().value() == failing;
      for (std::size_t step = 0; step < last_step; ++step) trainer.run_step(step);
      if (!fails) trainer.run_step(last_step);
      if (!fails) return std::string("has ended the step");
      trainer.begin_step(last_step, made);
      trainer.reducer().abandon_step("its loss is not a number");
      return std::string("backward pass of this rank; its loss is not a number");
    });
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      const bool told = static_cast<int>(rank) == failing ||
                        said[rank].find(fmt::format("rank {} aborted: an exception ended its step",
                                                    failing)) != std::string::npos;
      ASSERT_TRUE(told && said[rank].find("its loss is not a number") != std::string::npos)
          << "rank " << rank << ": " << said[rank] << "\n"
          << replay_command("Seeds/ReducerEventSimulation.AFailure*", seed);
    }
  }
}

// A rank's process ends at some moment: all ranks that need it say which rank it was.
TEST_P(ReducerEventSimulation, AKilledRankIsNamedByAllOthers) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const ReducerCase drawn = ReducerCase::draw(seed, 2);
    Random random(seed + 2'000'000);
    const auto killed = static_cast<int>(random.below(static_cast<std::uint64_t>(drawn.ranks)));
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    simulation.kill_at(random.below(500), killed);
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      return testing::train(communicator, drawn);
    });
    ASSERT_FALSE(simulation.was_stuck()) << seed;
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      const bool right = static_cast<int>(rank) == killed || said[rank].empty() ||
                         said[rank].find(fmt::format("rank {}", killed)) != std::string::npos;
      ASSERT_TRUE(right) << "rank " << rank << ": " << said[rank] << "\n"
                         << replay_command("Seeds/ReducerEventSimulation.AKilled*", seed);
    }
  }
}

// Counts the buckets that are reduced.
class Counting : public PlainReduction {
 public:
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    return PlainReduction::start(communicator, bucket).then([this] { ++reduced; });
  }
  std::size_t reduced = 0;
};

// From the first step on, no rank makes a gradient before the buckets of all earlier gradients are
// reduced. If communication did not go on meanwhile, they would wait for ever.
std::string train_patiently(Communicator& communicator, const ReducerCase& drawn) {
  constexpr int kPolls = 100'000;
  const auto counting = std::make_shared<Counting>();
  Reducer reducer(
      communicator, drawn.gradients,
      {.op = ReduceOp::sum, .bucket_bytes = drawn.options.bucket_bytes, .hook = counting});
  for (std::size_t step = 0; step < 3; ++step) {
    const reducer::BucketPlan plan = reducer.plan();
    counting->reduced = 0;
    for (std::size_t b = 0; b < plan.size(); ++b) {
      for (const std::size_t i : plan[b].gradients) {
        testing::fill(reducer.gradient(i).view, testing::gradient_value(0, i, step));
        reducer.mark_ready(i);
      }
      for (int polls = 0; counting->reduced <= b; ++polls) {
        if (polls == kPolls) return fmt::format("bucket {} of step {} waits", b, step);
        communicator.poll();
      }
    }
    reducer.finalize();
    for (std::size_t i = 0; i < drawn.gradients.size(); ++i) {
      const double sum = testing::gradient_value(0, i, step) * communicator.size();
      if (!testing::is_full_of(reducer.gradient(i).view, sum)) return fmt::format("gradient {}", i);
    }
    (void)reducer.rebuild();
  }
  return {};
}

TEST_P(ReducerEventSimulation, BucketsAreReducedWhileBackwardGoesOn) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const ReducerCase drawn = ReducerCase::draw(seed, 2);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      return train_patiently(communicator, drawn);
    });
    ASSERT_EQ(first_failure(said), "")
        << replay_command("Seeds/ReducerEventSimulation.Buckets*", seed);
  }
}

// Shows that the tests above could fail: after a while, the first message from rank 0 to rank 1 is
// lost, or one bit of it is wrong.
void expect_caught(transport::sim::Wire::Fault fault, double least_part) {
  int struck = 0, caught = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ReducerCase drawn = ReducerCase::draw(seed, 2);
    // Nobody looks at the messages for gradients that are not used.
    for (ReducerCase::Step& step : drawn.steps) {
      for (auto& uses : step.uses) std::ranges::fill(uses, ReducerCase::Use::used);
    }
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    simulation.network().wire(0, 1).arm(fault);
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      return testing::train(communicator, drawn);
    });
    if (!simulation.network().wire(0, 1).struck()) continue;
    ++struck;
    caught += first_failure(said).empty() ? 0 : 1;
  }
  EXPECT_GT(struck, 20);
  EXPECT_GE(caught, least_part * struck) << "of " << struck;
}

TEST(ReducerSimulationCanary, ALostMessageIsCaught) {
  expect_caught(transport::sim::Wire::Fault::loss, 1);
}

// It is not caught between two gradients, nor in a part of a rank's report that nobody needs.
TEST(ReducerSimulationCanary, AFlippedBitIsCaughtMostly) {
  expect_caught(transport::sim::Wire::Fault::flip, 0.3);
}

}  // namespace
}  // namespace stretto::simulation

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random steps of random reducers against a serial oracle: each rank makes its gradients in an
// order of its own, lacks some, freezes some or has no data at all. On simulated networks, whose
// seeds STRETTO_SIMULATION_SEED and _SEEDS choose, and on shared memory.

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/reducer/reducer.h"
#include "tests/simulation/seeded_run.h"
#include "tests/support/run_ranks.h"

namespace stretto::simulation {
namespace {

constexpr std::size_t kSteps = 5;

enum class Use { used, unused, frozen };

// What all ranks do in a step; known to each of them, so that each can check.
struct Step {
  std::vector<std::vector<Use>> uses;           // [rank][gradient]
  std::vector<bool> has_data;                   // [rank]
  std::vector<std::vector<std::size_t>> order;  // [rank]: all gradients.
};

struct Case {
  int ranks = 1;
  std::vector<GradientDescription> gradients;
  ReducerOptions options;
  std::vector<Step> steps;
};

std::vector<std::size_t> shuffled(Random& random, std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

Step draw_step(Random& random, const Case& drawn, const std::vector<std::size_t>& usual_order) {
  const auto ranks = static_cast<std::size_t>(drawn.ranks);
  const std::size_t count = drawn.gradients.size();
  Step step;
  step.uses.assign(ranks, std::vector<Use>(count, Use::used));
  for (std::size_t i = 0; i < count; ++i) {
    const bool frozen = random.below(10) == 0;
    for (auto& uses : step.uses) {
      uses[i] = frozen ? Use::frozen : random.below(4) == 0 ? Use::unused : Use::used;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    step.has_data.push_back(r == 0 || random.below(8) != 0);
    step.order.push_back(random.below(3) == 0 ? shuffled(random, count) : usual_order);
  }
  return step;
}

Case draw(std::uint64_t seed, int least_ranks) {
  Random random(seed);
  Case drawn;
  drawn.ranks = std::max(least_ranks, 1 + static_cast<int>(random.below(4)));
  const std::size_t count = 1 + random.below(12);
  constexpr std::array kDTypes = {DType::f32, DType::f32, DType::f64, DType::i32};
  for (std::size_t i = 0; i < count; ++i) {
    drawn.gradients.push_back(
        {std::to_string(i), kDTypes[random.below(kDTypes.size())], random.below(60)});
  }
  drawn.options = {.op = ReduceOp::sum,
                   .bucket_bytes = {1 + random.below(200), 1 + random.below(1000)},
                   .last_bucket_small = random.below(2) == 0,
                   .find_unused = true};
  if (random.below(2) == 0) drawn.options.hook = std::make_shared<F16Reduction>();
  auto usual_order = shuffled(random, count);
  for (std::size_t s = 0; s < kSteps; ++s) {
    if (s == kSteps / 2) usual_order = shuffled(random, count);
    drawn.steps.push_back(draw_step(random, drawn, usual_order));
  }
  return drawn;
}

template <class T>
void visit_as(View view, T (*change)(T, double), double number) {
  auto* const elements = reinterpret_cast<T*>(view.data);
  for (std::size_t i = 0; i < view.count; ++i) elements[i] = change(elements[i], number);
}

void fill(View view, double number) {
  if (view.dtype == DType::f32) {
    visit_as<float>(
        view, [](float, double n) { return static_cast<float>(n); }, number);
  } else if (view.dtype == DType::f64) {
    visit_as<double>(
        view, [](double, double n) { return n; }, number);
  } else {
    visit_as<std::int32_t>(
        view, [](std::int32_t, double n) { return static_cast<std::int32_t>(n); }, number);
  }
}

template <class T>
bool all_are(View view, double number) {
  const auto* const elements = reinterpret_cast<const T*>(view.data);
  return std::all_of(elements, elements + view.count,
                     [&](T element) { return static_cast<double>(element) == number; });
}

bool is_full_of(View view, double number) {
  if (view.dtype == DType::f32) return all_are<float>(view, number);
  if (view.dtype == DType::f64) return all_are<double>(view, number);
  return all_are<std::int32_t>(view, number);
}

double value_of(std::size_t rank, std::size_t gradient, std::size_t step) {
  return static_cast<double>((rank * 7 + gradient * 3 + step) % 50);
}

// What the gradient holds afterwards, on a rank that has data; `before` if no rank has used it.
double expected(const Step& step, std::size_t gradient, std::size_t number, double before) {
  double sum = 0;
  bool used = false;
  for (std::size_t rank = 0; rank < step.uses.size(); ++rank) {
    if (!step.has_data[rank] || step.uses[rank][gradient] != Use::used) continue;
    used = true;
    sum += value_of(rank, gradient, number);
  }
  return used ? sum : before;
}

// The part of one rank in a case.
class Trainer {
 public:
  Trainer(Communicator& communicator, const Case& drawn)
      : communicator_(communicator),
        drawn_(drawn),
        rank_(static_cast<std::size_t>(communicator.rank())),
        reducer_(communicator, drawn.gradients, options_of(drawn)) {}

  Reducer& reducer() { return reducer_; }

  // Whether what the step leaves is right.
  void run_step(std::size_t number) {
    freeze(number);
    if (!drawn_.steps[number].has_data[rank_]) {
      reducer_.finalize_without_data();
      (void)reducer_.rebuild();
      return;
    }
    make_gradients(number, drawn_.gradients.size());
    reducer_.finalize();
    (void)reducer_.rebuild();
    check(number);
  }

  // The step, up to where this rank has made that many gradients; those that it does not use count.
  void begin_step(std::size_t number, std::size_t made) {
    freeze(number);
    make_gradients(number, made);
  }

  // What is wrong so far; empty: nothing.
  std::string trouble;

 private:
  // With a hook of this rank's own.
  static ReducerOptions options_of(const Case& drawn) {
    ReducerOptions options = drawn.options;
    if (options.hook->name() != "plain") options.hook = std::make_shared<F16Reduction>();
    return options;
  }
  const std::vector<Use>& uses(std::size_t number) const {
    return drawn_.steps[number].uses[rank_];
  }

  void freeze(std::size_t number) {
    for (std::size_t i = 0; i < uses(number).size(); ++i) {
      reducer_.set_frozen(i, uses(number)[i] == Use::frozen);
    }
  }

  void make_gradients(std::size_t number, std::size_t at_most) {
    for (std::size_t i = 0; i < uses(number).size(); ++i) {
      fill(reducer_.gradient(i).view, before(number, i));
    }
    for (std::size_t made = 0; made < at_most; ++made) {
      const std::size_t i = drawn_.steps[number].order[rank_][made];
      if (made % 2 == rank_ % 2) communicator_.poll();  // Time passes.
      if (uses(number)[i] != Use::used) continue;
      fill(reducer_.gradient(i).view, value_of(rank_, i, number));
      reducer_.mark_ready(i);
    }
  }

  double before(std::size_t number, std::size_t gradient) const {
    return uses(number)[gradient] == Use::frozen ? 3 : 0;
  }

  void check(std::size_t number) {
    for (std::size_t i = 0; i < drawn_.gradients.size() && trouble.empty(); ++i) {
      const double right = expected(drawn_.steps[number], i, number, before(number, i));
      if (is_full_of(reducer_.gradient(i).view, right)) continue;
      trouble = fmt::format("gradient {} is not {} after step {}", i, right, number);
    }
  }

  Communicator& communicator_;
  const Case& drawn_;
  std::size_t rank_;
  Reducer reducer_;
};

// All steps of a case on one rank; what is wrong, or empty.
std::string train(Communicator& communicator, const Case& drawn) {
  Trainer trainer(communicator, drawn);
  for (std::size_t step = 0; step < kSteps; ++step) trainer.run_step(step);
  return trainer.trouble;
}

// Runs a program on each rank of a simulation. Returns what each says, or throws, by rank.
using Program = std::function<std::string(Communicator&)>;
std::vector<std::string> run_all(Simulation& simulation, const Program& program) {
  std::vector<std::string> said(static_cast<std::size_t>(simulation.size()));
  simulation.run([&](Communicator& communicator) {
    std::string& own = said[static_cast<std::size_t>(communicator.rank())];
    try {
      own = program(communicator);
    } catch (const std::exception& error) {
      own = error.what();
    }
  });
  if (simulation.was_stuck()) said.front() += "; ranks waited when nothing could move any more";
  return said;
}

std::string first_trouble(const std::vector<std::string>& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (!said[rank].empty()) return fmt::format("rank {}: {}", rank, said[rank]);
  }
  return {};
}

class ReducerSimulation : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ReducerSimulation, testing::Range(0, kSeedGroups));

// A fifth of the seeds each.
class ReducerEventSimulation : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ReducerEventSimulation, testing::Range(0, kSeedGroups / 5));

TEST_P(ReducerSimulation, StepsEqualTheSerialOracle) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const Case drawn = draw(seed, 1);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said =
        run_all(simulation, [&](Communicator& communicator) { return train(communicator, drawn); });
    ASSERT_EQ(first_trouble(said), "")
        << replay_command("Seeds/ReducerSimulation.StepsEqual*", seed);
  }
}

// A rank gives up somewhere in a backward pass and does nothing more: all others are told so in
// that step, wherever they are in it; or at the end of the step before, if it was faster there.
TEST_P(ReducerEventSimulation, AFailureInMidBackwardIsToldToAllRanks) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const Case drawn = draw(seed, 2);
    Random random(seed + 1'000'000);
    const auto failing = static_cast<int>(random.below(static_cast<std::uint64_t>(drawn.ranks)));
    const std::size_t last_step = random.below(kSteps);
    const std::size_t made = random.below(drawn.gradients.size() + 1);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      Trainer trainer(communicator, drawn);
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
                        said[rank].find(fmt::format("backward pass of rank {} when", failing)) !=
                            std::string::npos;
      ASSERT_TRUE(told && said[rank].find("its loss is not a number") != std::string::npos)
          << "rank " << rank << ": " << said[rank] << "\n"
          << replay_command("Seeds/ReducerEventSimulation.AFailure*", seed);
    }
  }
}

// The process of a rank ends at some moment: all others say whose it was, if they need it.
TEST_P(ReducerEventSimulation, AKilledRankIsNamedByAllOthers) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const Case drawn = draw(seed, 2);
    Random random(seed + 2'000'000);
    const auto killed = static_cast<int>(random.below(static_cast<std::uint64_t>(drawn.ranks)));
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    simulation.kill_at(random.below(500), killed);
    const auto said =
        run_all(simulation, [&](Communicator& communicator) { return train(communicator, drawn); });
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

// No rank makes a gradient before the buckets of all earlier ones are reduced, from the first step
// on: if communication did not go on meanwhile, they would wait for ever.
std::string train_patiently(Communicator& communicator, const Case& drawn) {
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
        fill(reducer.gradient(i).view, value_of(0, i, step));
        reducer.mark_ready(i);
      }
      for (int polls = 0; counting->reduced <= b; ++polls) {
        if (polls == kPolls) return fmt::format("bucket {} of step {} waits", b, step);
        communicator.poll();
      }
    }
    reducer.finalize();
    for (std::size_t i = 0; i < drawn.gradients.size(); ++i) {
      const double sum = value_of(0, i, step) * communicator.size();
      if (!is_full_of(reducer.gradient(i).view, sum)) return fmt::format("gradient {}", i);
    }
    (void)reducer.rebuild();
  }
  return {};
}

TEST_P(ReducerEventSimulation, BucketsAreReducedWhileBackwardGoesOn) {
  for (const std::uint64_t seed : seeds_of(GetParam())) {
    const Case drawn = draw(seed, 2);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    const auto said = run_all(simulation, [&](Communicator& communicator) {
      return train_patiently(communicator, drawn);
    });
    ASSERT_EQ(first_trouble(said), "")
        << replay_command("Seeds/ReducerEventSimulation.Buckets*", seed);
  }
}

// Whether the tests above could fail: the first message from one rank to another after a while is
// lost, or one bit of it is wrong.
void expect_caught(transport::sim::Wire::Fault fault, double least_part) {
  int struck = 0, caught = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Case drawn = draw(seed, 2);
    Simulation simulation({.ranks = drawn.ranks, .seed = seed});
    simulation.network().wire(0, 1).arm(fault);
    const auto said =
        run_all(simulation, [&](Communicator& communicator) { return train(communicator, drawn); });
    if (!simulation.network().wire(0, 1).struck()) continue;
    ++struck;
    caught += first_trouble(said).empty() ? 0 : 1;
  }
  EXPECT_GT(struck, 20);
  EXPECT_GE(caught, least_part * struck) << "of " << struck;
}

TEST(ReducerSimulationCanary, ALostMessageIsCaught) {
  expect_caught(transport::sim::Wire::Fault::loss, 1);
}

// Not if it is one between two gradients, or one of a rank's report that nobody needs.
TEST(ReducerSimulationCanary, AFlippedBitIsCaughtMostly) {
  expect_caught(transport::sim::Wire::Fault::flip, 0.3);
}

// The same on shared memory, with all that threads can do to each other.
TEST(ReducerThreads, StepsEqualTheSerialOracle) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Case drawn = draw(seed, 1);
    run_ranks(drawn.ranks, [&](Communicator& communicator) {
      EXPECT_EQ(train(communicator, drawn), "") << "seed " << seed;
    });
  }
}

}  // namespace
}  // namespace stretto::simulation

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random steps of random reducers against a serial oracle: each rank makes its gradients in an
// order of its own, lacks some, freezes some or has no data at all. STRETTO_REDUCER_SEEDS says how
// many.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

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

Case draw(std::uint64_t seed, int least_ranks = 1) {
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
  for (std::size_t s = 0; s < 24; ++s) {
    if (s == 12) usual_order = shuffled(random, count);
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

// The first element; all are alike.
double first_of(View view) {
  if (view.dtype == DType::f32) return *reinterpret_cast<const float*>(view.data);
  if (view.dtype == DType::f64) return *reinterpret_cast<const double*>(view.data);
  return *reinterpret_cast<const std::int32_t*>(view.data);
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

// The first `at_most` gradients of the rank's order; those that it does not use count.
void make_gradients(Reducer& reducer, const Case& drawn, std::size_t number, std::size_t rank,
                    std::size_t at_most) {
  const Step& step = drawn.steps[number];
  const std::vector<Use>& uses = step.uses[rank];
  for (std::size_t i = 0; i < uses.size(); ++i) {
    fill(reducer.gradient(i).view, uses[i] == Use::frozen ? 3 : 0);
  }
  for (std::size_t made = 0; made < at_most; ++made) {
    const std::size_t i = step.order[rank][made];
    if (uses[i] != Use::used) continue;
    fill(reducer.gradient(i).view, value_of(rank, i, number));
    reducer.mark_ready(i);
  }
}

void freeze(Reducer& reducer, const std::vector<Use>& uses) {
  for (std::size_t i = 0; i < uses.size(); ++i) reducer.set_frozen(i, uses[i] == Use::frozen);
}

void run_step(Reducer& reducer, const Case& drawn, std::size_t number, std::size_t rank) {
  const Step& step = drawn.steps[number];
  const std::vector<Use>& uses = step.uses[rank];
  freeze(reducer, uses);
  if (!step.has_data[rank]) {
    reducer.finalize_without_data();
    (void)reducer.rebuild();
    return;
  }
  make_gradients(reducer, drawn, number, rank, uses.size());
  reducer.finalize();
  (void)reducer.rebuild();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const View view = reducer.gradient(i).view;
    if (view.count == 0) continue;
    ASSERT_EQ(first_of(view), expected(step, i, number, uses[i] == Use::frozen ? 3 : 0))
        << "gradient " << i << ", step " << number << ", rank " << rank;
  }
}

std::uint64_t seed_count(std::uint64_t by_default) {
  const char* const asked = std::getenv("STRETTO_REDUCER_SEEDS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : by_default;
}

// With a hook of this rank's own.
ReducerOptions options_of(const Case& drawn) {
  ReducerOptions options = drawn.options;
  if (options.hook->name() != "plain") options.hook = std::make_shared<F16Reduction>();
  return options;
}

TEST(ReducerProperty, StepsEqualTheSerialOracle) {
  for (std::uint64_t seed = 0; seed < seed_count(150) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case drawn = draw(seed);
    run_ranks(drawn.ranks, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank().value());
      Reducer reducer(communicator, drawn.gradients, options_of(drawn));
      for (std::size_t step = 0; step < drawn.steps.size(); ++step) {
        run_step(reducer, drawn, step, rank);
      }
    });
  }
}

// A rank gives up somewhere in a backward pass and does nothing more: all others are told so in
// that step, wherever they are in it; or at the end of the step before, if it was faster there.
TEST(ReducerProperty, AFailureInMidBackwardIsToldToAllRanks) {
  for (std::uint64_t seed = 0; seed < seed_count(20) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case drawn = draw(seed, 2);
    Random random(seed + 1'000'000);
    const auto failing = random.below(static_cast<std::uint64_t>(drawn.ranks));
    const std::size_t last_step = random.below(6);
    const std::size_t made = random.below(drawn.gradients.size() + 1);
    run_ranks(drawn.ranks, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank().value());
      Reducer reducer(communicator, drawn.gradients, options_of(drawn));
      std::size_t step = 0;
      if (rank == failing) {
        for (; step < last_step; ++step) run_step(reducer, drawn, step, rank);
        freeze(reducer, drawn.steps[last_step].uses[rank]);
        make_gradients(reducer, drawn, last_step, rank, made);
        reducer.abandon_step("its loss is not a number");
        return;
      }
      try {
        for (; step <= last_step; ++step) run_step(reducer, drawn, step, rank);
        ADD_FAILURE() << "rank " << rank << " has ended step " << last_step;
      } catch (const Aborted& error) {
        const std::string text = error.what();
        EXPECT_GE(step + 1, last_step);
        EXPECT_NE(text.find(fmt::format("backward pass of rank {} when", failing)),
                  std::string::npos)
            << text;
        EXPECT_NE(text.find("its loss is not a number"), std::string::npos) << text;
      }
    });
  }
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/reducer_case.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "stretto/base/random.h"

namespace stretto::testing {
namespace {

using Use = ReducerCase::Use;
using Step = ReducerCase::Step;

std::vector<std::size_t> shuffled(Random& random, std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

// No rank uses gradients from `quiet` on, so that whole buckets are left out after some steps.
Step draw_step(Random& random, const ReducerCase& drawn,
               const std::vector<std::size_t>& usual_order, std::size_t quiet) {
  const auto ranks = static_cast<std::size_t>(drawn.ranks);
  const std::size_t count = drawn.gradients.size();
  Step step;
  step.uses.assign(ranks, std::vector<Use>(count, Use::used));
  for (std::size_t i = 0; i < count; ++i) {
    const bool frozen = random.below(10) == 0;
    for (auto& uses : step.uses) {
      const bool unused = random.below(4) == 0 || i >= quiet;
      uses[i] = frozen ? Use::frozen : unused ? Use::unused : Use::used;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    step.has_data.push_back(r == 0 || random.below(8) != 0);
    step.order.push_back(random.below(3) == 0 ? shuffled(random, count) : usual_order);
  }
  return step;
}

template <class T>
void fill_as(View view, double number) {
  auto* const elements = reinterpret_cast<T*>(view.data);
  for (std::size_t i = 0; i < view.count; ++i) elements[i] = static_cast<T>(number);
}

template <class T>
bool all_are(View view, double number) {
  const auto* const elements = reinterpret_cast<const T*>(view.data);
  return std::all_of(elements, elements + view.count,
                     [&](T element) { return static_cast<double>(element) == number; });
}

// Returns the options with this rank's own hook.
ReducerOptions options_of(const ReducerCase& drawn) {
  ReducerOptions options = drawn.options;
  if (options.hook->name() != "plain") options.hook = std::make_shared<F16Reduction>();
  return options;
}

}  // namespace

ReducerCase ReducerCase::draw(std::uint64_t seed, int least_ranks) {
  Random random(seed);
  ReducerCase drawn;
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
  // Some cases have so many steps that buckets are rebuilt twice.
  const std::size_t steps = seed % 20 == 0 ? 24 : 5;
  const std::size_t quiet = random.below(count + 1);
  for (std::size_t s = 0; s < steps; ++s) {
    if (s == steps / 2) usual_order = shuffled(random, count);
    drawn.steps.push_back(draw_step(random, drawn, usual_order, s % 4 == 3 ? count : quiet));
  }
  return drawn;
}

void fill(View view, double number) {
  if (view.dtype == DType::f32) return fill_as<float>(view, number);
  if (view.dtype == DType::f64) return fill_as<double>(view, number);
  fill_as<std::int32_t>(view, number);
}

bool is_full_of(View view, double number) {
  if (view.dtype == DType::f32) return all_are<float>(view, number);
  if (view.dtype == DType::f64) return all_are<double>(view, number);
  return all_are<std::int32_t>(view, number);
}

double gradient_value(std::size_t rank, std::size_t gradient, std::size_t step) {
  return static_cast<double>((rank * 7 + gradient * 3 + step) % 50);
}

ReducerTrainer::ReducerTrainer(Communicator& communicator, const ReducerCase& drawn)
    : communicator_(communicator),
      drawn_(drawn),
      rank_(static_cast<std::size_t>(communicator.rank())),
      reducer_(communicator, drawn.gradients, options_of(drawn)) {}

void ReducerTrainer::run_step(std::size_t number) {
  begin_step(number, drawn_.gradients.size());
  const auto& has_data = drawn_.steps[number].has_data;
  if (has_data[rank_]) {
    reducer_.finalize();
    check(number);
  } else {
    reducer_.finalize_without_data();
  }
  (void)reducer_.rebuild();
  if (has_data[rank_]) check(number);  // Values move with their gradients.
}

void ReducerTrainer::begin_step(std::size_t number, std::size_t made) {
  for (std::size_t i = 0; i < uses(number).size(); ++i) {
    reducer_.set_frozen(i, uses(number)[i] == Use::frozen);
    fill(reducer_.gradient(i).view, before(number, i));
  }
  if (!drawn_.steps[number].has_data[rank_]) return;
  for (std::size_t at = 0; at < made; ++at) {
    const std::size_t i = drawn_.steps[number].order[rank_][at];
    if (at % 2 == rank_ % 2) communicator_.poll();  // Time passes in the simulation.
    if (uses(number)[i] != Use::used) continue;
    fill(reducer_.gradient(i).view, gradient_value(rank_, i, number));
    reducer_.mark_ready(i);
  }
}

double ReducerTrainer::before(std::size_t number, std::size_t gradient) const {
  return uses(number)[gradient] == Use::frozen ? 3 : 0;
}

// Returns the sum over the ranks that have used the gradient, or its old value if none has.
double ReducerTrainer::after(std::size_t number, std::size_t gradient) const {
  const Step& step = drawn_.steps[number];
  double sum = 0;
  bool used = false;
  for (std::size_t rank = 0; rank < step.uses.size(); ++rank) {
    if (!step.has_data[rank] || step.uses[rank][gradient] != Use::used) continue;
    used = true;
    sum += gradient_value(rank, gradient, number);
  }
  return used ? sum : before(number, gradient);
}

void ReducerTrainer::check(std::size_t number) {
  for (std::size_t i = 0; i < drawn_.gradients.size() && failure_.empty(); ++i) {
    const double right = after(number, i);
    if (is_full_of(reducer_.gradient(i).view, right)) continue;
    failure_ = fmt::format("gradient {} is not {} after step {}", i, right, number);
  }
}

std::string train(Communicator& communicator, const ReducerCase& drawn) {
  ReducerTrainer trainer(communicator, drawn);
  for (std::size_t step = 0; step < drawn.steps.size(); ++step) trainer.run_step(step);
  return trainer.failure();
}

}  // namespace stretto::testing

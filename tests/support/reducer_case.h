// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/reducer/reducer.h"

namespace stretto::testing {

// Random steps of a random reducer: each rank makes its gradients in an order of its own, does not
// use some, freezes some, or has no data at all. Every rank knows the whole case, so that it can
// check.
struct ReducerCase {
  enum class Use { used, unused, frozen };
  struct Step {
    std::vector<std::vector<Use>> uses;           // [rank][gradient]
    std::vector<bool> has_data;                   // [rank]
    std::vector<std::vector<std::size_t>> order;  // [rank]: all gradients.
  };
  static ReducerCase draw(std::uint64_t seed, int least_ranks);

  int ranks = 1;
  std::vector<GradientDescription> gradients;
  ReducerOptions options;  // The same on each rank, except that each makes its own hook.
  std::vector<Step> steps;
};

void fill(View view, double number);
bool is_full_of(View view, double number);
double gradient_value(std::size_t rank, std::size_t gradient, std::size_t step);

// One rank's part in a case.
class ReducerTrainer {
 public:
  ReducerTrainer(Communicator& communicator, const ReducerCase& drawn);

  Reducer& reducer() { return reducer_; }
  void run_step(std::size_t number);
  // Runs the step until this rank has made `made` gradients, including those that it does not use.
  void begin_step(std::size_t number, std::size_t made);
  // Returns what is wrong so far; empty if nothing is.
  const std::string& failure() const { return failure_; }

 private:
  using Use = ReducerCase::Use;
  const std::vector<Use>& uses(std::size_t number) const {
    return drawn_.steps[number].uses[rank_];
  }
  double before(std::size_t number, std::size_t gradient) const;
  double after(std::size_t number, std::size_t gradient) const;
  void check(std::size_t number);

  Communicator& communicator_;
  const ReducerCase& drawn_;
  std::size_t rank_;
  Reducer reducer_;
  std::string failure_;
};

// Runs all steps of a case on one rank, and compares with a serial oracle. Returns what is wrong,
// or nothing.
std::string train(Communicator& communicator, const ReducerCase& drawn);

}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/base/status.h"
#include "stretto/communicator/plan.h"
#include "stretto/kernel/reduce.h"

namespace stretto::communicator {

// Carries out the steps of a plan that need no waiting: reduce and copy. Holds the operand lists,
// so that a step allocates nothing.
class LocalSteps {
 public:
  explicit LocalSteps(const Plan& plan);

  // Where a place's buffer (input, output, or the lane's scratch) begins; a function of the place.
  template <class Base>
  Status run(const schedule::Step& step, std::uint32_t segment, const Base& base_of) {
    inputs_.clear();
    outputs_.clear();
    for (const schedule::Place& place : plan_->schedule().sources(step)) {
      const Plan::Range range = plan_->range(place, segment);
      inputs_.push_back({.data = base_of(place) + range.offset_bytes, .dtype = range.dtype});
    }
    for (const schedule::Place& place : plan_->schedule().targets(step)) {
      outputs_.push_back(base_of(place) + plan_->range(place, segment).offset_bytes);
    }
    return apply(step, segment);
  }

 private:
  Status apply(const schedule::Step& step, std::uint32_t segment);

  const Plan* plan_;
  std::vector<kernel::Input> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace stretto::communicator

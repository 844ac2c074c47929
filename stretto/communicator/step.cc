// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/step.h"

#include <algorithm>

#include "stretto/kernel/copy.h"

namespace stretto::communicator {

LocalSteps::LocalSteps(const Plan& plan) : plan_(&plan) {
  std::size_t sources_max = 0;
  std::size_t targets_max = 0;
  for (const schedule::Step& step : plan.schedule().steps) {
    sources_max = std::max(sources_max, plan.schedule().sources(step).size());
    targets_max = std::max(targets_max, plan.schedule().targets(step).size());
  }
  inputs_.reserve(sources_max);
  outputs_.reserve(targets_max);
}

Status LocalSteps::apply(const schedule::Step& step, std::uint32_t segment) {
  const Plan::Range target = plan_->range(plan_->schedule().targets(step).front(), segment);
  if (target.count == 0) return {};
  if (step.kind == schedule::StepKind::copy) {
    for (void* output : outputs_) {
      if (output == inputs_.front().data) continue;  // In place.
      kernel::copy(output, inputs_.front().data, target.bytes(), kernel::Store::automatic);
    }
    return {};
  }
  return kernel::reduce({.dtype = plan_->operation().dtype,
                         .output_dtype = target.dtype,
                         .op = plan_->operation().op,
                         .divisor = step.completes ? plan_->divisor() : 1,
                         .count = target.count,
                         .inputs = inputs_,
                         .outputs = outputs_,
                         .store = kernel::Store::automatic});
}

}  // namespace stretto::communicator

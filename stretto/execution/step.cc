// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/step.h"

#include "stretto/base/take_lines.h"

namespace stretto::execution {
namespace {

// Other ranks read what goes to shared slots and to their own memory.
kernel::Store store_to(const Plan& plan, const schedule::Place& target) {
  const bool is_shared = plan.is_shared(target.slot) || target.rank != plan.schedule().rank;
  return is_shared ? kernel::Store::shared : kernel::Store::automatic;
}

}  // namespace

Result<kernel::PreparedReduction> prepare_reduction(const Plan& plan, const schedule::Step& step,
                                                    std::span<const kernel::Input> inputs,
                                                    std::span<void* const> outputs,
                                                    kernel::Store store) {
  const schedule::Place& target = plan.schedule().targets(step).front();
  return kernel::PreparedReduction::create({.dtype = plan.operation().dtype,
                                            .output_dtype = plan.range(target, 0).dtype,
                                            .op = plan.operation().op,
                                            .divisor = step.completes ? plan.divisor() : 1,
                                            .inputs = inputs,
                                            .outputs = outputs,
                                            .store = store});
}

LocalSteps::LocalSteps(const Plan& plan)
    : plan_(&plan),
      first_step_(plan.schedule().steps.data()),
      prepared_(plan.schedule().steps.size()) {
  for (std::size_t i = 0; i < prepared_.size(); ++i) {
    const schedule::Step& step = first_step_[i];
    const bool is_local =
        step.kind == schedule::StepKind::reduce || step.kind == schedule::StepKind::copy;
    if (!is_local) continue;
    prepare(prepared_[i], step);
    bind(prepared_[i], step, 0);
  }
}

std::size_t LocalSteps::bytes() const {
  constexpr std::size_t kPlaceBytes =
      sizeof(std::size_t) + sizeof(kernel::Input) + sizeof(BoundStep::Operand);
  std::size_t places = 0;
  for (const Prepared& prepared : prepared_) {
    places += prepared.source_offsets.size() + prepared.target_offsets.size();
  }
  return prepared_.size() * sizeof(Prepared) + places * kPlaceBytes;
}

void LocalSteps::take_lines(const schedule::Step& step, const BoundStep& bound,
                            std::size_t count) const {
  const auto sources = plan_->schedule().sources(step);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::size_t bytes = count * size_bytes(bound.inputs[i].dtype);
    if (!plan_->is_shared(sources[i].slot) || bytes < kTakenBytesMin) continue;
    stretto::take_lines(bound.inputs[i].data, bytes);
  }
}

void LocalSteps::prepare(Prepared& prepared, const schedule::Step& step) const {
  const auto sources = plan_->schedule().sources(step);
  const auto targets = plan_->schedule().targets(step);
  BoundStep& bound = prepared.bound;
  for (const schedule::Place& place : sources) {
    bound.inputs.push_back({.data = nullptr, .dtype = plan_->range(place, 0).dtype});
  }
  bound.outputs.resize(targets.size());
  bound.sources.resize(sources.size());
  bound.targets.resize(targets.size());
  bound.output_element_bytes = size_bytes(plan_->range(targets.front(), 0).dtype);
  prepared.bytes_per_element = targets.size() * bound.output_element_bytes;
  for (const kernel::Input& input : bound.inputs) {
    prepared.bytes_per_element += size_bytes(input.dtype);
  }
  prepared.source_offsets.resize(sources.size());
  prepared.target_offsets.resize(targets.size());
  if (step.kind == schedule::StepKind::copy) return;
  auto reduction = prepare_reduction(*plan_, step, bound.inputs, bound.outputs,
                                     store_to(*plan_, targets.front()));
  prepared.failure = reduction.status();
  if (reduction.ok()) bound.reduction = *reduction;
}

void LocalSteps::bind(Prepared& prepared, const schedule::Step& step, std::uint32_t segment) const {
  const auto sources = plan_->schedule().sources(step);
  const auto targets = plan_->schedule().targets(step);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prepared.source_offsets[i] = plan_->range(sources[i], segment).offset_bytes;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    prepared.target_offsets[i] = plan_->range(targets[i], segment).offset_bytes;
  }
  prepared.bound.whole_count = plan_->range(targets.front(), segment).count;
  prepared.segment = segment;
}

}  // namespace stretto::execution

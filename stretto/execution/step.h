// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/turn.h"
#include "stretto/kernel/reduce.h"

namespace stretto::execution {

// The reduction that a step of a plan makes, from operands like these.
Result<kernel::PreparedReduction> prepare_reduction(const Plan& plan, const schedule::Step& step,
                                                    std::span<const kernel::Input> inputs,
                                                    std::span<void* const> outputs,
                                                    kernel::Store store);

// How far a list of steps has come: elements of a step, in one segment.
struct StepCursor {
  std::size_t step = 0;
  std::size_t element = 0;

  // By `count` elements of the step, which has `all`. Returns whether these are any.
  bool move(std::size_t count, std::size_t all) {
    element += count;
    if (element == all) *this = {.step = step + 1};
    return count > 0;
  }
};

// Carries out the steps of a plan that need no waiting: reduce and copy. What does not depend on
// the buffers is found out beforehand, and the operand lists are kept, so that a step costs little
// more than its bytes and allocates nothing.
class LocalSteps {
 public:
  explicit LocalSteps(const Plan& plan);

  // Works on a step of the plan's schedule, from element `cursor.element` on, as far as the turn
  // goes; at the end of the step the cursor is on the next one. Where a place's buffer (input,
  // output, or the lane's scratch) begins is a function of the place.
  template <class Base>
  Status run(const schedule::Step& step, std::uint32_t segment, const Base& base_of,
             StepCursor& cursor, Turn& turn) {
    Prepared& prepared = prepared_[static_cast<std::size_t>(&step - first_step_)];
    if (prepared.segment != segment) bind(prepared, step, segment);
    const std::size_t begin = cursor.element;
    const std::size_t count = turn.take(prepared.count - begin, prepared.bytes_per_element);
    if (!cursor.move(count, prepared.count)) return {};
    const auto sources = plan_->schedule().sources(step);
    const auto targets = plan_->schedule().targets(step);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      prepared.inputs[i].data = base_of(sources[i]) + prepared.source_offsets[i] +
                                begin * size_bytes(prepared.inputs[i].dtype);
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      prepared.outputs[i] =
          base_of(targets[i]) + prepared.target_offsets[i] + begin * prepared.target_element_bytes;
    }
    return apply(prepared, count);
  }

 private:
  // A step, bound to one segment.
  struct Prepared {
    static constexpr auto kUnbound = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t segment = kUnbound;
    std::size_t count = 0;
    std::size_t target_element_bytes = 1;
    std::size_t bytes_per_element = 1;                   // Of all places.
    std::optional<kernel::PreparedReduction> reduction;  // Nothing: a copy.
    Status failure;                                      // Why there is no reduction, if so.
    std::vector<std::size_t> source_offsets;
    std::vector<std::size_t> target_offsets;
    std::vector<kernel::Input> inputs;
    std::vector<void*> outputs;
  };
  void prepare(Prepared& prepared, const schedule::Step& step) const;
  void bind(Prepared& prepared, const schedule::Step& step, std::uint32_t segment) const;
  static Status apply(const Prepared& prepared, std::size_t count);

  const Plan* plan_;
  const schedule::Step* first_step_;
  std::vector<Prepared> prepared_;  // Per step.
};

}  // namespace stretto::execution

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <limits>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/execution/kernel_queue.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/turn.h"
#include "stretto/kernel/reduce.h"

namespace stretto::execution {

// Prepares the reduction of a step of a plan, for operands of the types of these.
Result<kernel::PreparedReduction> prepare_reduction(const Plan& plan, const schedule::Step& step,
                                                    std::span<const kernel::Input> inputs,
                                                    std::span<void* const> outputs,
                                                    kernel::Store store);

// How far a list of steps has come in one segment: a step, and its elements that are done.
struct StepCursor {
  std::size_t step = 0;
  std::size_t element = 0;

  // Moves on by `count` elements of the step, which has `all`. Returns whether `count` is not 0.
  bool move(std::size_t count, std::size_t all) {
    element += count;
    if (element == all) *this = {.step = step + 1};
    return count > 0;
  }
};

// Binds the steps of a plan that need no waiting, reduce and copy, to buffers. Everything that does
// not depend on the buffers is computed beforehand, and the operand lists are kept, so that a step
// costs little more than its bytes and allocates nothing.
class LocalSteps {
 public:
  explicit LocalSteps(const Plan& plan);

  // The memory that this uses.
  std::size_t bytes() const;

  // Works on a step of the plan's schedule, from element `cursor.element` on, as far as the turn
  // goes; at the end of the step the cursor is on the next one. `locate` takes a place and returns,
  // as a BufferRef, where its buffer (input, output, or the lane's scratch) begins. `takes_lines`:
  // takes the cache lines of shared sources if the step does (schedule::Step::takes).
  template <class Locate>
  Status run(const schedule::Step& step, std::uint32_t segment, const Locate& locate,
             StepCursor& cursor, Turn& turn, KernelQueue& queue, bool takes_lines) {
    Prepared& prepared = prepared_[static_cast<std::size_t>(&step - first_step_)];
    if (prepared.segment != segment) bind(prepared, step, segment);
    BoundStep& bound = prepared.bound;
    const std::size_t begin = cursor.element;
    const std::size_t count = turn.take(bound.whole_count - begin, prepared.bytes_per_element,
                                        queue.piece_bytes_min() / bound.output_element_bytes);
    if (!cursor.move(count, bound.whole_count)) return {};
    const auto sources = plan_->schedule().sources(step);
    const auto targets = plan_->schedule().targets(step);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const BufferRef buffer = locate(sources[i]);
      bound.sources[i] = {.kind = buffer.kind, .owner = buffer.owner};
      bound.inputs[i].data =
          buffer.data + prepared.source_offsets[i] + begin * size_bytes(bound.inputs[i].dtype);
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const BufferRef buffer = locate(targets[i]);
      bound.targets[i] = {.kind = buffer.kind, .owner = buffer.owner};
      bound.outputs[i] =
          buffer.data + prepared.target_offsets[i] + begin * bound.output_element_bytes;
    }
    STRETTO_RETURN_IF_ERROR(prepared.failure);
    STRETTO_RETURN_IF_ERROR(queue.run(bound, count));
    if (takes_lines && step.takes) take_lines(step, bound, count);
    return {};
  }

 private:
  // A step, bound to one segment.
  struct Prepared {
    static constexpr auto kUnbound = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t segment = kUnbound;
    std::size_t bytes_per_element = 1;  // Of all places.
    Status failure;                     // Why there is no reduction, if that failed.
    std::vector<std::size_t> source_offsets;
    std::vector<std::size_t> target_offsets;
    BoundStep bound;
  };
  void take_lines(const schedule::Step& step, const BoundStep& bound, std::size_t count) const;
  void prepare(Prepared& prepared, const schedule::Step& step) const;
  void bind(Prepared& prepared, const schedule::Step& step, std::uint32_t segment) const;

  const Plan* plan_;
  const schedule::Step* first_step_;
  std::vector<Prepared> prepared_;  // Per step.
};

}  // namespace stretto::execution

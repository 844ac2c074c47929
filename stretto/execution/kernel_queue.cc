// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/kernel_queue.h"

#include "stretto/kernel/scale.h"

namespace stretto::execution {
namespace {

class HostQueue final : public KernelQueue {
 public:
  Status run(const BoundStep& step, std::size_t count) override {
    if (step.reduction) {
      step.reduction->run(count, step.inputs, step.outputs, step.whole_count);
      return {};
    }
    const kernel::Input& first = step.inputs.front();
    const ConstView input(static_cast<const std::byte*>(first.data), count, first.dtype);
    for (void* output : step.outputs) {
      STRETTO_RETURN_IF_ERROR(kernel::scale(step.factor, input, static_cast<std::byte*>(output),
                                            step.whole_count * step.output_element_bytes));
    }
    return {};
  }
};

class PastEvent final : public StreamEvent {
 public:
  bool is_done() override { return true; }
};

}  // namespace

Result<std::unique_ptr<StreamEvent>> Stream::make_event() {
  return std::unique_ptr<StreamEvent>(std::make_unique<PastEvent>());
}

KernelQueue& host_queue() {
  static HostQueue queue;
  return queue;
}

Status copy(KernelQueue& queue, const ConstView& from, std::byte* to, double factor) {
  if (from.count == 0) return {};
  BoundStep step;
  step.factor = factor;
  step.inputs = {{.data = from.data, .dtype = from.dtype}};
  step.outputs = {to};
  step.output_element_bytes = size_bytes(from.dtype);
  step.whole_count = from.count;
  return queue.run(step, from.count);
}

}  // namespace stretto::execution

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/kernel_queue.h"

#include "stretto/kernel/copy.h"

namespace stretto::execution {
namespace {

class HostQueue final : public KernelQueue {
 public:
  Status run(const BoundStep& step, std::size_t count) override {
    if (step.reduction) {
      step.reduction->run(count, step.inputs, step.outputs, step.whole_count);
      return {};
    }
    const void* const input = step.inputs.front().data;
    const std::size_t element_bytes = step.output_element_bytes;
    for (void* output : step.outputs) {
      if (output == input) continue;  // In place.
      kernel::copy(output, input, count * element_bytes, kernel::Store::automatic,
                   step.whole_count * element_bytes);
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

}  // namespace stretto::execution

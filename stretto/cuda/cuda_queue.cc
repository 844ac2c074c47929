// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/cuda_queue.h"

#include <algorithm>

#include "stretto/cuda/reduction.h"

namespace stretto::cuda {
namespace {

using execution::BoundStep;
using execution::StreamEvent;

class CudaEvent final : public StreamEvent {
 public:
  CudaEvent(std::shared_ptr<const Driver> driver, void* event)
      : driver_(std::move(driver)), event_(event) {}
  ~CudaEvent() override {
    const Driver::Current current(*driver_);
    (void)driver_->call().event_destroy(event_);
  }
  bool is_done() override {
    const Driver::Current current(*driver_);
    return driver_->call().event_query(event_) != DriverInterface::kNotReady;
  }
  void* handle() const { return event_; }

 private:
  std::shared_ptr<const Driver> driver_;
  void* event_;
};

}  // namespace

CudaQueue::~CudaQueue() {
  const Driver::Current current(*driver_);
  (void)driver_->call().stream_destroy(stream_);
}

Result<std::unique_ptr<StreamEvent>> CudaQueue::make_event() {
  STRETTO_ASSIGN_OR_RETURN(void* const event, driver_->make_event());
  return std::unique_ptr<StreamEvent>(std::make_unique<CudaEvent>(driver_, event));
}

void CudaQueue::record(StreamEvent& event) {
  const Driver::Current current(*driver_);
  keep("cuEventRecord",
       driver_->call().event_record(static_cast<CudaEvent&>(event).handle(), stream_));
}

bool CudaQueue::wait(StreamEvent& event) {
  auto* const known = dynamic_cast<CudaEvent*>(&event);
  if (known == nullptr) return event.is_done();
  const Driver::Current current(*driver_);
  keep("cuStreamWaitEvent", driver_->call().stream_wait_event(stream_, known->handle(), 0));
  return true;
}

bool CudaQueue::is_done() {
  const Driver::Current current(*driver_);
  const int state = driver_->call().stream_query(stream_);
  if (state == DriverInterface::kNotReady) return false;
  keep("the stream", state);
  return true;
}

Status CudaQueue::status() {
  (void)is_done();
  return status_;
}

void CudaQueue::begin_behind(int mark) {
  const Driver::Current current(*driver_);
  keep(marks_->let_wait(stream_, mark));
}

Status CudaQueue::run(const BoundStep& step, std::size_t count) {
  const Driver::Current current(*driver_);
  if (status_.ok()) status_ = step.reduction ? reduce(step, count) : copy(step, count);
  return status_;
}

Status CudaQueue::copy(const BoundStep& step, std::size_t count) const {
  if (step.factor != 1) return scale(step, count);
  const void* const input = step.inputs.front().data;
  const std::size_t bytes = count * step.output_element_bytes;
  for (const void* output : step.outputs) {
    if (output == input || bytes == 0) continue;  // In place.
    STRETTO_RETURN_IF_ERROR(driver_->status_of_call(
        "cuMemcpyAsync",
        driver_->call().copy(address_of(output), address_of(input), bytes, stream_)));
  }
  return {};
}

Status CudaQueue::scale(const BoundStep& step, std::size_t count) const {
  if (count == 0) return {};
  const DType dtype = step.inputs.front().dtype;
  Operands operands{};
  operands.inputs[0] = step.inputs.front().data;
  operands.outputs[0] = step.outputs.front();
  operands.input_count = operands.output_count = 1;
  operands.count = count;
  operands.factor = step.factor;
  const int error = kernel_(dtype, dtype, ReduceOp::product, &operands, stream_);
  if (error != kNoKernel) return driver_->status_of_call("the kernel of a product", error);
  return status_of(StatusCode::invalid_argument, "a device has no products of {} with a factor",
                   name(dtype));
}

Status CudaQueue::reduce(const BoundStep& step, std::size_t count) const {
  const kernel::Reduction& like = step.reduction->like();
  if (count == 0) return {};
  if (step.reduction->copies_one()) return copy(step, count);
  int error = kNoKernel;
  if (step.inputs.size() <= kInputsMax && step.outputs.size() <= kOutputsMax) {
    Operands operands{};
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      operands.inputs[i] = step.inputs[i].data;
      if (step.inputs[i].dtype != like.dtype) operands.partial_inputs |= 1u << i;
    }
    std::ranges::copy(step.outputs, operands.outputs);
    operands.input_count = static_cast<int>(step.inputs.size());
    operands.output_count = static_cast<int>(step.outputs.size());
    operands.divisor = like.divisor;
    operands.count = count;
    error = kernel_(like.dtype, like.output_dtype, like.op, &operands, stream_);
  }
  if (error != kNoKernel) return driver_->status_of_call("the reduction's kernel", error);
  return status_of(StatusCode::invalid_argument,
                   "a device reduces up to {} inputs into up to {} outputs: not {} of {} into {} "
                   "by {}",
                   kInputsMax, kOutputsMax, step.inputs.size(), name(like.dtype),
                   step.outputs.size(), name(like.op));
}

}  // namespace stretto::cuda

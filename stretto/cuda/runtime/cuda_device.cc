// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/runtime/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string_view>

#include "stretto/cuda/runtime/kernels.h"

namespace stretto::cuda {
namespace {

using execution::BoundStep;
using execution::StreamEvent;

Status status_of_call(std::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  const bool lacks_memory = error == cudaErrorMemoryAllocation;
  return status_of(lacks_memory ? StatusCode::out_of_memory : StatusCode::system, "{}: {} ({})",
                   call, cudaGetErrorString(error), cudaGetErrorName(error));
}

// Whether an answer says "not yet", which the runtime keeps as if it were the error of whatever is
// asked after next.
bool is_not_ready(cudaError_t answer) {
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();
  return answer == cudaErrorNotReady;
}

// Makes a device the thread's current one for a while.
class Current {
 public:
  explicit Current(int number) {
    (void)cudaGetDevice(&before_);
    if (before_ != number) (void)cudaSetDevice(number);
  }
  ~Current() { (void)cudaSetDevice(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
};

class CudaEvent final : public StreamEvent {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }
  bool is_done() override { return !is_not_ready(cudaEventQuery(event_)); }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaQueue final : public execution::KernelQueue {
 public:
  CudaQueue(int number, cudaStream_t stream) : number_(number), stream_(stream) {}
  // What has been begun still runs.
  ~CudaQueue() override { (void)cudaStreamDestroy(stream_); }

  Result<std::unique_ptr<StreamEvent>> make_event() override {
    const Current current(number_);
    cudaEvent_t event = nullptr;
    STRETTO_RETURN_IF_ERROR(status_of_call(
        "cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return std::unique_ptr<StreamEvent>(std::make_unique<CudaEvent>(event));
  }
  void record(StreamEvent& event) override {
    const Current current(number_);
    keep("cudaEventRecord", cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_));
  }
  bool wait(StreamEvent& event) override {
    auto* const known = dynamic_cast<CudaEvent*>(&event);
    if (known == nullptr) return event.is_done();
    const Current current(number_);
    keep("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, known->handle(), 0));
    return true;
  }
  bool is_done() override {
    const Current current(number_);
    const cudaError_t state = cudaStreamQuery(stream_);
    if (is_not_ready(state)) return false;
    keep("the stream", state);
    return true;
  }
  // A failure on the device is told by whatever asks next.
  Status status() override {
    (void)is_done();
    return status_;
  }
  void* native_handle() override { return stream_; }

  Status run(const BoundStep& step, std::size_t count) override {
    const Current current(number_);
    if (status_.ok()) {
      const Status status = step.reduction ? reduce(step, count) : copy(step, count);
      if (!status.ok()) status_ = status;
    }
    return status_;
  }

 private:
  void keep(std::string_view call, cudaError_t error) {
    if (status_.ok()) status_ = status_of_call(call, error);
  }

  Status copy(const BoundStep& step, std::size_t count) {
    const void* const input = step.inputs.front().data;
    const std::size_t bytes = count * step.output_element_bytes;
    for (void* output : step.outputs) {
      if (output == input || bytes == 0) continue;  // In place.
      STRETTO_RETURN_IF_ERROR(status_of_call(
          "cudaMemcpyAsync", cudaMemcpyAsync(output, input, bytes, cudaMemcpyDefault, stream_)));
    }
    return {};
  }

  Status reduce(const BoundStep& step, std::size_t count) {
    const kernel::Reduction& like = step.reduction->like();
    if (count == 0) return {};
    // The bits of one input as they are, as on the host.
    const bool copies = step.inputs.size() == 1 && like.divisor == 1 &&
                        step.inputs.front().dtype == like.output_dtype;
    if (copies) return copy(step, count);
    if (step.inputs.size() > kInputsMax || step.outputs.size() > kOutputsMax ||
        !has_reduction_kernel(like.dtype, like.output_dtype, like.op)) {
      return status_of(StatusCode::invalid_argument,
                       "a device reduces up to {} inputs into up to {} outputs: not {} of {} into "
                       "{} by {}",
                       kInputsMax, kOutputsMax, step.inputs.size(), name(like.dtype),
                       step.outputs.size(), name(like.op));
    }
    Operands operands{};
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      operands.inputs[i] = step.inputs[i].data;
      if (step.inputs[i].dtype != like.dtype) operands.partial_inputs |= 1u << i;
    }
    std::copy(step.outputs.begin(), step.outputs.end(), operands.outputs);
    operands.input_count = static_cast<int>(step.inputs.size());
    operands.output_count = static_cast<int>(step.outputs.size());
    operands.divisor = like.divisor;
    operands.count = count;
    const int error = launch_reduction(like.dtype, like.output_dtype, like.op, operands, stream_);
    return status_of_call("the reduction's kernel", static_cast<cudaError_t>(error));
  }

  int number_;
  cudaStream_t stream_;
  Status status_;
};

}  // namespace

int CudaDevice::count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<std::unique_ptr<execution::KernelQueue>> CudaDevice::make_queue() {
  const Current current(number_);
  int least = 0;
  int greatest = 0;
  STRETTO_RETURN_IF_ERROR(status_of_call("cudaDeviceGetStreamPriorityRange",
                                         cudaDeviceGetStreamPriorityRange(&least, &greatest)));
  cudaStream_t stream = nullptr;
  STRETTO_RETURN_IF_ERROR(status_of_call(
      "cudaStreamCreate", cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest)));
  return std::unique_ptr<execution::KernelQueue>(std::make_unique<CudaQueue>(number_, stream));
}

Result<std::shared_ptr<void>> CudaDevice::pin(ByteSpan bytes) {
  const Current current(number_);
  STRETTO_RETURN_IF_ERROR(status_of_call(
      "cudaHostRegister", cudaHostRegister(bytes.data(), bytes.size(), cudaHostRegisterPortable)));
  return std::shared_ptr<void>(bytes.data(), [](void* data) { (void)cudaHostUnregister(data); });
}

Result<Memory> CudaDevice::allocate(std::size_t bytes) {
  const Current current(number_);
  void* data = nullptr;
  STRETTO_RETURN_IF_ERROR(status_of_call("cudaMalloc", cudaMalloc(&data, bytes)));
  std::shared_ptr<void> owner(data, [](void* memory) { (void)cudaFree(memory); });
  return Memory(std::move(owner), {static_cast<std::byte*>(data), bytes});
}

}  // namespace stretto::cuda

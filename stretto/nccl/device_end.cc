// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/device_end.h"

namespace stretto::nccl {

Status RecordedEnd::wait_on(cuda::StreamHandle stream) const {
  return driver_->status_of_call("cuStreamWaitEvent",
                                 driver_->call().stream_wait_event(stream, event_, 0));
}

Status RecordedEnd::let_wait(void* of_caller) {
  auto* const stream = static_cast<cuda::StreamHandle>(of_caller);
  STRETTO_RETURN_IF_ERROR(driver_->check_no_capture(stream));
  const cuda::Driver::Current current(*driver_);
  return wait_on(stream);
}

Result<std::shared_ptr<CapturedEnd>> CapturedEnd::make(std::shared_ptr<const cuda::Driver> driver,
                                                       std::shared_ptr<cuda::Marks> marks,
                                                       cuda::StreamHandle stream) {
  STRETTO_ASSIGN_OR_RETURN(const std::uint64_t capture, driver->capture_of(stream));
  STRETTO_ASSIGN_OR_RETURN(cuda::Marks::Event event, marks->take_event());
  return std::shared_ptr<CapturedEnd>(
      new CapturedEnd(std::move(driver), std::move(marks), event, stream, capture));
}

Status CapturedEnd::let_wait(void* of_caller) {
  const cuda::Driver::Current current(*driver_);
  auto* const stream = of_caller == nullptr ? stream_ : static_cast<cuda::StreamHandle>(of_caller);
  STRETTO_ASSIGN_OR_RETURN(const std::uint64_t now, driver_->capture_of(stream_));
  STRETTO_ASSIGN_OR_RETURN(const std::uint64_t of_waiting, driver_->capture_of(stream));
  // Else the event would spoil another graph that is being captured now.
  if (now != capture_ || (of_waiting != 0 && of_waiting != capture_)) {
    return {StatusCode::invalid_argument, "the graph that has it is not being captured any more"};
  }
  return wait_on(stream);
}

}  // namespace stretto::nccl

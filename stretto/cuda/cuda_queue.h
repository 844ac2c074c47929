// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "stretto/cuda/kernels.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/cuda_driver/marks.h"
#include "stretto/execution/kernel_queue.h"

namespace stretto::cuda {

// A stream of a device. It copies between any memory that the device reaches. It reduces up to 16
// inputs into up to 16 outputs in memory of the device, memory that the device has mapped, or
// page-locked memory of the host, and fails with invalid_argument for more.
class CudaQueue final : public execution::KernelQueue {
 public:
  // Owns the stream.
  CudaQueue(std::shared_ptr<const Driver> driver, StreamHandle stream, Reduce kernel,
            std::shared_ptr<Marks> marks)
      : driver_(std::move(driver)), stream_(stream), kernel_(kernel), marks_(std::move(marks)) {}
  // Work that has been begun still runs.
  ~CudaQueue() override;

  Result<std::unique_ptr<execution::StreamEvent>> make_event() override;
  void record(execution::StreamEvent& event) override;
  bool wait(execution::StreamEvent& event) override;
  bool is_done() override;
  // Includes failures on the device that have shown so far.
  Status status() override;
  Status run(const execution::BoundStep& step, std::size_t count) override;
  // A step is one kernel: its caller does not wait for it.
  std::size_t piece_bytes_min() const override { return std::numeric_limits<std::size_t>::max(); }
  void begin_behind(int mark) override;

 private:
  void keep(const char* call, int error) { keep(driver_->status_of_call(call, error)); }
  void keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  Status copy(const execution::BoundStep& step, std::size_t count) const;
  Status scale(const execution::BoundStep& step, std::size_t count) const;
  Status reduce(const execution::BoundStep& step, std::size_t count) const;

  std::shared_ptr<const Driver> driver_;
  StreamHandle stream_;
  Reduce kernel_;
  std::shared_ptr<Marks> marks_;
  Status status_;
};

}  // namespace stretto::cuda

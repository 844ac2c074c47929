// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/communicator/memory.h"
#include "stretto/execution/kernel_queue.h"

namespace stretto::cuda {

// A GPU, by the CUDA runtime. Its queues are streams of high priority that do not wait for the
// default stream; they copy between any memory that the device reaches, reduce up to 16 inputs into
// up to 16 outputs of its own or of pinned memory, and fail with invalid_argument beyond that.
class CudaDevice final : public execution::Device {
 public:
  // Of those that this process sees; 0 where there is no driver.
  static int count();
  // `number` is below count(). Loads nothing; the first use of a device takes a while.
  explicit CudaDevice(int number) : number_(number) {}

  Result<std::unique_ptr<execution::KernelQueue>> make_queue() override;
  Result<std::shared_ptr<void>> pin(ByteSpan bytes) override;
  // Of the device, not zeroed, for which no pointer of the host is valid.
  Result<Memory> allocate(std::size_t bytes);

 private:
  int number_;
};

}  // namespace stretto::cuda

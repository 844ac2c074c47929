// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>

#include "stretto/base/mutex.h"
#include "stretto/cuda/cuda_queue.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/cuda_driver/deferred_frees.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/execution/kernel_queue.h"
#include "stretto/transport/memory.h"

namespace stretto::cuda {

// A GPU, used through its driver and our kernels. Its memory is exported as file descriptors, so
// that other processes of the host can map it, for their own GPU or for the same.
class CudaDevice final : public execution::SharedDevice {
 public:
  CudaDevice(std::shared_ptr<const Driver> driver, const Kernels& kernels)
      : driver_(std::move(driver)), kernels_(kernels), marks_(std::make_shared<Marks>(driver_)) {}

  Result<std::unique_ptr<execution::KernelQueue>> make_queue() override;
  Result<std::shared_ptr<void>> pin(ByteSpan bytes) override;
  Result<std::array<std::byte, 16>> id() const override { return driver_->id(); }

  // Allocating and freeing memory waits for all that this process has begun on the device:
  // unmapping alone would take memory away from a running kernel. Memory that is freed while a CUDA
  // graph is captured goes later.
  Result<Mapping> create(std::size_t bytes) override;
  Result<Mapping> open(const FileDescriptor& descriptor, std::size_t bytes) override;

  const char* name() const override { return "the backend \"cuda\""; }
  int device() const override { return driver_->number(); }
  int device_of(const void* data) const override { return driver_->device_of(data); }
  bool takes(const void* data) const override;
  bool takes_host_memory() const override { return false; }
  const char* refusal(const OperationDescriptor& operation,
                      const BufferParts& parts) const override;
  Result<bool> is_captured(void* stream) override;
  Result<Mark> mark(void* stream, bool) override;
  void forget(int mark) override { marks_->forget(mark); }

 private:
  // Memory that create() has made and nobody has freed.
  struct Allocations {
    explicit Allocations(std::shared_ptr<const Driver> driver) : frees(std::move(driver)) {}
    DeferredFrees frees;
    Mutex mutex;
    transport::RegionTable table STRETTO_GUARDED_BY(mutex);
    std::uint32_t next STRETTO_GUARDED_BY(mutex) = 1;
  };
  Result<std::shared_ptr<std::byte>> map(std::uint64_t handle, std::size_t bytes) const;
  std::shared_ptr<std::byte> own(std::shared_ptr<std::byte> data, std::size_t bytes) const;

  std::shared_ptr<const Driver> driver_;
  Kernels kernels_;
  std::shared_ptr<Marks> marks_;
  std::shared_ptr<Allocations> allocations_ = std::make_shared<Allocations>(driver_);
};

}  // namespace stretto::cuda

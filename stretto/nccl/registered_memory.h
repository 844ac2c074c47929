// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "stretto/base/mutex.h"
#include "stretto/base/status.h"
#include "stretto/cuda_driver/deferred_frees.h"
#include "stretto/nccl/load.h"

namespace stretto::nccl {

// A communicator, which one thread at a time may use.
struct SharedComm {
  Mutex mutex;
  Comm comm STRETTO_GUARDED_BY(mutex) = nullptr;  // Null before it is made, and after its end.
  // Its end has begun, and goes on partly without the lock. It takes no calls any more.
  bool is_ending STRETTO_GUARDED_BY(mutex) = false;
  std::string name;  // NCCL may read it while `comm` lives.
};

// Memory that NCCL has allocated and a communicator has registered, so that NCCL uses it without
// copies of its own if the machine allows it. In one operation all ranks must use such memory, or
// none: NCCL leaves everything else undefined. Any thread.
class RegisteredMemory : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  RegisteredMemory(std::shared_ptr<const Nccl> nccl, std::shared_ptr<const Driver> driver,
                   std::shared_ptr<SharedComm> comm)
      : nccl_(std::move(nccl)),
        driver_(std::move(driver)),
        comm_(std::move(comm)),
        frees_(driver_) {}

  // Zeroed memory, which may outlive the communicator. Allocating and freeing it wait for all that
  // the process has begun on the device. Fails with invalid_argument while a CUDA graph is
  // captured; memory that is freed meanwhile goes later. Fails with timeout if NCCL is busy with an
  // operation that other ranks are late for.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);
  bool contains(const void* data) const;

 private:
  // Ok if the driver can allocate `bytes` more, else its failure.
  Status check_memory_left(std::size_t bytes) const;
  Status register_with_comm(std::byte* data, std::size_t bytes);
  void free(std::byte* data);
  // Runs `use` with the communicator, if there is one, as soon as it takes calls. False if it takes
  // none in time.
  template <class Use>
  bool when_ready(const Use& use);

  struct Block {
    std::size_t bytes = 0;
    void* handle = nullptr;  // The communicator's name for it.
  };
  std::shared_ptr<const Nccl> nccl_;
  std::shared_ptr<const Driver> driver_;
  std::shared_ptr<SharedComm> comm_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Block> blocks_ STRETTO_GUARDED_BY(mutex_);  // By their first bytes.
  cuda::DeferredFrees frees_;  // The last member, since it uses the others when it is destroyed.
};

}  // namespace stretto::nccl

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
  Comm comm STRETTO_GUARDED_BY(mutex) = nullptr;  // Null: there is none, not yet or not any more.
  // Its end has begun, a part of which goes on without the lock. It takes no calls any more.
  bool is_ending STRETTO_GUARDED_BY(mutex) = false;
  std::string name;  // NCCL may look at it as long as there is one.
};

// Memory that NCCL has made and a communicator knows, so that it reaches it without copies of its
// own where the machine can. All ranks of an operation have to be on such memory, or none: NCCL
// says that all else is undefined. Any thread.
class RegisteredMemory : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  RegisteredMemory(std::shared_ptr<const Nccl> nccl, std::shared_ptr<const Driver> driver,
                   std::shared_ptr<SharedComm> comm)
      : nccl_(std::move(nccl)),
        driver_(std::move(driver)),
        comm_(std::move(comm)),
        frees_(driver_) {}

  // Zeroed. It may outlive the communicator. Waits, as freeing it does, for all that the process
  // has begun on the device; what is freed while a CUDA graph is captured goes later.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);
  bool contains(const void* data) const;

 private:
  // Ok, or what the driver says to so much more memory.
  Status check_memory_left(std::size_t bytes) const;
  Status register_with_comm(std::byte* data, std::size_t bytes);
  void free(std::byte* data);
  // Runs `use` with the communicator, if there is one, as soon as it takes calls.
  template <class Use>
  bool when_ready(const Use& use);

  struct Block {
    std::size_t bytes = 0;
    void* handle = nullptr;  // By which the communicator knows it.
  };
  std::shared_ptr<const Nccl> nccl_;
  std::shared_ptr<const Driver> driver_;
  std::shared_ptr<SharedComm> comm_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Block> blocks_ STRETTO_GUARDED_BY(mutex_);  // By where they begin.
  cuda::DeferredFrees frees_;  // The last member, since it uses the others when it is destroyed.
};

}  // namespace stretto::nccl

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <utility>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stretto/base/mutex.h"
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// Memory for copies of tensors on a device: memory of that device, which the ranks' devices map, or
// page-locked memory of the host. Making it takes driver calls for which the host waits, so it is
// kept and used again: at most twice as much as was ever in use at once, plus the memory that small
// blocks are cut from. Any thread.
class DeviceBlocks : public std::enable_shared_from_this<DeviceBlocks> {
 public:
  enum class Place { device, host };
  // Allocates from `communicator`.
  DeviceBlocks(const std::shared_ptr<Communicator>& communicator, Place place)
      : communicator_(communicator), are_on_host_(place == Place::host) {}

  bool are_on_host() const { return are_on_host_; }

  // An uninitialised block for the calling thread's current stream of `device`. The last copy of
  // the pointer gives the block back, and must be dropped only when operations on the block have
  // ended. Copies to and from it on that stream may still be under way. So the host may touch a
  // block only when that stream has come to where it was at this call. Throws what
  // Communicator::allocate_bytes() does.
  std::shared_ptr<std::byte> take(std::size_t bytes, c10::Device device);
  // Frees all idle blocks, and from now on each block that comes back.
  void close();

 private:
  struct Block {
    std::shared_ptr<const Memory> memory;  // Shared by small blocks.
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    c10::Stream stream;  // The last user's.
  };
  Block find_or_make(std::size_t bytes, const c10::Stream& stream);
  std::list<Block> make(std::size_t bytes, const c10::Stream& stream);
  void give_back(Block block);
  void free(const std::list<Block>& blocks) const;

  const std::weak_ptr<Communicator> communicator_;
  const bool are_on_host_;
  Mutex mutex_;
  bool is_closed_ STRETTO_GUARDED_BY(mutex_) = false;
  // Blocks that are not in use, the least recently used first.
  std::list<Block> idle_ STRETTO_GUARDED_BY(mutex_);
  // Of large blocks:
  std::size_t bytes_in_use_ STRETTO_GUARDED_BY(mutex_) = 0;
  std::size_t most_in_use_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::c10d_backend

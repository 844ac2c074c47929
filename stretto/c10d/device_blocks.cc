// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/device_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "stretto/base/error.h"
#include "stretto/base/log.h"
#include "stretto/base/round_up.h"
#include "stretto/communicator/page_locked.h"
#include "stretto/torch_device/device_allocation.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

// Drivers allocate memory that can be exported in pieces of this size.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
// The smallest block, so that there are few to look through.
constexpr std::size_t kLeastBytes = std::size_t{16} << 10;

bool is_large(std::size_t bytes) { return bytes >= kPieceBytes; }

std::size_t size_class(std::size_t bytes) {
  if (bytes > kPieceBytes / 2) return round_up(bytes, kPieceBytes);
  return std::bit_ceil(std::max(bytes, kLeastBytes));
}

}  // namespace

std::shared_ptr<std::byte> DeviceBlocks::take(std::size_t bytes, c10::Device device) {
  const c10::Stream stream = current_stream(device);
  const std::shared_ptr<Block> block(new Block(find_or_make(size_class(bytes), stream)),
                                     [pool = shared_from_this()](Block* taken) {
                                       pool->give_back(std::move(*taken));
                                       delete taken;
                                     });
  let_wait(stream, block->stream);
  block->stream = stream;
  return {block, block->data};
}

// Takes the block that was used last of those that are not too large, on the same stream if there
// is one: for a block of another stream, `stream` waits for all work of that stream.
DeviceBlocks::Block DeviceBlocks::find_or_make(std::size_t bytes, const c10::Stream& stream) {
  const auto fits = [&](const Block& each) {
    return bytes <= each.bytes && each.bytes < 2 * bytes;
  };
  const auto is_at_hand = [&](const Block& each) { return fits(each) && each.stream == stream; };
  std::list<Block> made;
  while (true) {
    {
      const MutexLock held(mutex_);
      idle_.splice(idle_.end(), made);
      auto found = std::find_if(idle_.rbegin(), idle_.rend(), is_at_hand);
      if (found == idle_.rend()) found = std::find_if(idle_.rbegin(), idle_.rend(), fits);
      if (found != idle_.rend()) {
        Block block = std::move(*found);
        idle_.erase(std::next(found).base());
        if (is_large(block.bytes)) bytes_in_use_ += block.bytes;
        most_in_use_ = std::max(most_in_use_, bytes_in_use_);
        return block;
      }
    }
    made = make(bytes, stream);
  }
}

// Frees without the lock, since that waits for the device.
std::list<DeviceBlocks::Block> DeviceBlocks::make(std::size_t bytes, const c10::Stream& stream) {
  std::list<Block> freed;
  {
    const MutexLock held(mutex_);
    const std::size_t in_use = bytes_in_use_ + (is_large(bytes) ? bytes : 0);
    std::size_t all = in_use;
    for (const Block& each : idle_) all += is_large(each.bytes) ? each.bytes : 0;
    for (auto each = idle_.begin(); each != idle_.end();) {
      const auto next = std::next(each);
      if (is_large(each->bytes) && all > 2 * std::max(most_in_use_, in_use)) {
        all -= each->bytes;
        freed.splice(freed.end(), idle_, each);
      }
      each = next;
    }
  }
  free(std::exchange(freed, {}));
  const std::shared_ptr<Communicator> alive = communicator_.lock();
  if (alive == nullptr) {
    throw Aborted(status_of(StatusCode::aborted, "this process group has been shut down"));
  }
  const std::size_t all = std::max(bytes, kPieceBytes);
  const c10::Device device = stream.device();
  const auto memory = std::make_shared<const Memory>(
      are_on_host_ ? page_locked(alive->allocate_bytes(all), device.index())
                   : allocate_on(device, *alive, all));
  std::list<Block> blocks;
  for (std::size_t first = 0; first + bytes <= memory->bytes().size(); first += bytes) {
    blocks.push_back({memory, memory->bytes().data() + first, bytes, stream});
  }
  return blocks;
}

void DeviceBlocks::give_back(Block block) {
  {
    const MutexLock held(mutex_);
    if (is_large(block.bytes)) bytes_in_use_ -= block.bytes;
    if (!is_closed_) return idle_.push_back(std::move(block));
  }
  free({std::move(block)});
}

// Freeing memory of a device waits for the device by itself. A device that has failed makes no
// copies any more.
void DeviceBlocks::free(const std::list<Block>& blocks) const try {
  if (!are_on_host_) return;
  for (const Block& each : blocks) wait_for(each.stream);
} catch (const c10::Error& error) {
  log(LogLevel::warning, "copies to the host and back: {}", error.what_without_backtrace());
}

void DeviceBlocks::close() {
  std::list<Block> freed;
  {
    const MutexLock held(mutex_);
    is_closed_ = true;
    freed.swap(idle_);
  }
  free(freed);
}

}  // namespace stretto::c10d_backend

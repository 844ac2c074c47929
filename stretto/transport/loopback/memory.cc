// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/loopback/memory.h"

#include <cstring>

namespace stretto::transport::loopback {

Result<Region> LoopbackMemory::allocate(std::size_t bytes) {
  STRETTO_ASSIGN_OR_RETURN(Region region, PrivateMemory().allocate(bytes));
  return share(std::move(region), MemoryKind::registered);
}

Region LoopbackMemory::share_on_device(MappableMemory::Mapping mapping, std::size_t bytes) {
  return share(SharedMemory::share_on_device(std::move(mapping), bytes), MemoryKind::device);
}

Region LoopbackMemory::share(Region region, MemoryKind kind) {
  std::uint32_t number = 0;
  {
    const MutexLock lock(regions_->mutex);
    RegionTable& table = regions_->tables[self_];
    do {
      number = regions_->numbers.next();
    } while (table.find({number}, 0) != nullptr ||
             table.find({RemoteAddress::on_device(number)}, 0) != nullptr);
    if (kind == MemoryKind::device) number = RemoteAddress::on_device(number);
    table.insert(number, region.bytes, region.owner);
    regions_->generation.fetch_add(1, std::memory_order_release);
  }
  region.address = {.region = number, .offset_bytes = 0};
  // The table forgets the region before the memory goes. shared_ptr calls this, too, if it cannot
  // allocate what it needs itself.
  region.owner =
      std::shared_ptr<void>(region.bytes.data(), [regions = regions_, self = self_, number](void*) {
        const MutexLock guard(regions->mutex);
        const auto memory = regions->tables[self].hold({number});
        regions->tables[self].erase(number);
        regions->generation.fetch_add(1, std::memory_order_release);
      });
  return region;
}

RemoteAddress LoopbackMemory::locate(const void* data, std::size_t bytes) const {
  const MutexLock lock(regions_->mutex);
  return regions_->tables[self_].locate(data, bytes);
}

std::byte* LoopbackMemory::resolve(Rank peer, RemoteAddress address, std::size_t bytes) {
  if (!reaches(peer)) return nullptr;
  const MutexLock lock(regions_->mutex);
  return regions_->tables[peer].find(address, bytes);
}

std::shared_ptr<void> LoopbackMemory::hold(Rank peer, RemoteAddress address) {
  const MutexLock lock(regions_->mutex);
  return regions_->tables[peer].hold(address);
}

Status LoopbackMemory::get(Rank, RemoteAddress from, ByteSpan to) const {
  std::memcpy(to.data(), reinterpret_cast<const void*>(from.offset_bytes), to.size());
  return {};
}

Status LoopbackMemory::put(Rank, ConstByteSpan from, RemoteAddress to) const {
  std::memcpy(reinterpret_cast<void*>(to.offset_bytes), from.data(), from.size());
  return {};
}

}  // namespace stretto::transport::loopback

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace stretto::transport {

namespace {

Status unreachable(Rank peer) {
  return {StatusCode::internal,
          fmt::format("the private memory of rank {} cannot be reached", peer.value()), peer};
}

}  // namespace

Status SharedMemory::get(Rank peer, RemoteAddress, ByteSpan) const { return unreachable(peer); }
Status SharedMemory::put(Rank peer, ConstByteSpan, RemoteAddress) const {
  return unreachable(peer);
}

Region SharedMemory::share_on_device(MappableMemory::Mapping mapping, std::size_t bytes) {
  std::byte* const data = mapping.data.get();
  return Region{.address = {}, .bytes = {data, bytes}, .owner = std::move(mapping.data)};
}

Result<Region> PrivateMemory::allocate(std::size_t bytes) {
  // Length 0 is an error to mmap, not to callers.
  const std::size_t mapped_bytes = std::max<std::size_t>(bytes, 1);
  void* data =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return system_status("mmap");
  std::shared_ptr<void> owner(data, [mapped_bytes](void* p) { ::munmap(p, mapped_bytes); });
  return Region{
      .address = {}, .bytes = {static_cast<std::byte*>(data), bytes}, .owner = std::move(owner)};
}

void RegionTable::insert(std::uint32_t region, ByteSpan bytes, std::shared_ptr<void> owner) {
  erase(region);
  entries_.push_back({region, bytes, std::move(owner)});
}

void RegionTable::erase(std::uint32_t region) {
  std::erase_if(entries_, [region](const Entry& entry) { return entry.region == region; });
}

std::byte* RegionTable::find(RemoteAddress address, std::size_t bytes) const {
  for (const Entry& entry : entries_) {
    if (entry.region != address.region) continue;
    const std::size_t size = entry.bytes.size();
    if (address.offset_bytes > size || bytes > size - address.offset_bytes) return nullptr;
    return entry.bytes.data() + address.offset_bytes;
  }
  return nullptr;
}

std::shared_ptr<void> RegionTable::hold(RemoteAddress address) const {
  const auto found = std::ranges::find(entries_, address.region, &Entry::region);
  return found == entries_.end() ? nullptr : found->owner;
}

RemoteAddress RegionTable::locate(const void* data, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (const Entry& entry : entries_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(entry.bytes.data());
    if (address < begin || address - begin > entry.bytes.size()) continue;
    if (bytes > entry.bytes.size() - (address - begin)) continue;
    return {.region = entry.region, .offset_bytes = address - begin};
  }
  return {};
}

std::size_t RegionTable::total_bytes() const {
  std::size_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (RemoteAddress{entry.region}.kind() != MemoryKind::device) bytes += entry.bytes.size();
  }
  return bytes;
}

}  // namespace stretto::transport

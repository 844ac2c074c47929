// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "stretto/base/log.h"
#include "stretto/base/sealed_memory.h"
#include "stretto/transport/ring.h"

namespace stretto::transport::shm {
namespace {

constexpr std::chrono::milliseconds kLookPause(20);
constexpr double kMib = 1024.0 * 1024.0;

}  // namespace

Result<MappableMemory::Mapping> FileMemory::create(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor descriptor, make_sealed_memory("stretto", bytes));
  STRETTO_ASSIGN_OR_RETURN(auto data, map_shared_memory(descriptor.get(), bytes));
  return Mapping{std::move(descriptor), std::move(data), bytes};
}

Result<MappableMemory::Mapping> FileMemory::open(const FileDescriptor& descriptor,
                                                 std::size_t bytes) {
  struct stat info {};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &info) != 0) {
    return status_of(StatusCode::protocol, "a region came without its file");
  }
  if (!is_sealed_memory(descriptor.get())) {
    return status_of(StatusCode::protocol, "a region's file is not sealed");
  }
  if (bytes == 0 || static_cast<std::uint64_t>(info.st_size) < bytes) {
    return status_of(StatusCode::protocol, "a region of {} bytes is said to have {}", info.st_size,
                     bytes);
  }
  STRETTO_ASSIGN_OR_RETURN(auto data, map_shared_memory(descriptor.get(), bytes));
  return Mapping{FileDescriptor(), std::move(data), bytes};
}

ShmMemory::ShmMemory(Rank self, std::vector<std::shared_ptr<Channel>> channels)
    : self_(self), channels_(std::move(channels)), peers_(channels_.size()) {}

Result<Region> ShmMemory::allocate(std::size_t bytes) {
  service();
  STRETTO_ASSIGN_OR_RETURN(auto mapping, FileMemory().create(bytes));
  return share(next_number(), std::move(mapping), bytes);
}

Region ShmMemory::share_on_device(MappableMemory::Mapping mapping, std::size_t bytes) {
  service();
  return share(RemoteAddress::on_device(next_number()), std::move(mapping), bytes);
}

std::uint32_t ShmMemory::next_number() {
  const MutexLock lock(mutex_);
  std::uint32_t number = 0;
  do {
    number = numbers_.next();
  } while (is_in_use(number) || is_in_use(RemoteAddress::on_device(number)));
  return number;
}

// A number is in use until peers have been told that its region is gone.
bool ShmMemory::is_in_use(std::uint32_t number) const {
  return own_.find({number}, 0) != nullptr || std::ranges::count(released_, number) > 0;
}

// Enters the region in the table, and tells the peers of it.
Region ShmMemory::share(std::uint32_t number, MappableMemory::Mapping mapping, std::size_t bytes) {
  {
    const MutexLock lock(mutex_);
    // Freeing a region must not need memory.
    released_.reserve(released_.size() + own_.size() + 1);
    own_.insert(number, {mapping.data.get(), mapping.bytes});
    generation_.fetch_add(1, std::memory_order_release);
  }
  // Takes the region back if memory runs out below.
  std::shared_ptr<void> owner(
      mapping.data.get(), [memory = weak_from_this(), number, data = mapping.data](void*) mutable {
        // In a forked child the lock may be held for good, by a thread that only the parent has.
        const auto alive = memory.lock();
        if (alive != nullptr && alive->owner_process_.is_here()) {
          const MutexLock lock(alive->mutex_);
          alive->own_.erase(number);
          alive->generation_.fetch_add(1, std::memory_order_release);
          alive->released_.push_back(number);
          alive->any_released_.store(true, std::memory_order_relaxed);
        }
        data.reset();
      });
  const Notice notice{.kind = Notice::Kind::region, .region = number, .bytes = mapping.bytes};
  // The file is not needed any more once all peers have it: mappings keep it alive, and descriptors
  // are scarce.
  const auto file = std::make_shared<const FileDescriptor>(std::move(mapping.descriptor));
  for (auto& channel : channels_) {
    if (channel != nullptr) channel->send(notice, file);
  }
  return Region{.address = {.region = number, .offset_bytes = 0},
                .bytes = {mapping.data.get(), bytes},
                .owner = std::move(owner)};
}

RemoteAddress ShmMemory::locate(const void* data, std::size_t bytes) const {
  const MutexLock lock(mutex_);
  return own_.locate(data, bytes);
}

std::byte* ShmMemory::resolve(Rank peer, RemoteAddress address, std::size_t bytes) {
  if (peer != self_) return peers_[peer].table.find(address, bytes);
  const MutexLock lock(mutex_);
  return own_.find(address, bytes);
}

// Null for this rank, which keeps its own regions by their owner.
std::shared_ptr<void> ShmMemory::hold(Rank peer, RemoteAddress address) {
  return peers_[peer].table.hold(address);
}

bool ShmMemory::reaches(Rank peer) const { return peer == self_ || channels_[peer] != nullptr; }

Notice ShmMemory::proof() const {
  // A number that nobody can guess. It stays there as long as the process: peers may look late.
  static std::uint32_t number = std::random_device()();
  return {.kind = Notice::Kind::proof,
          .region = number,
          .bytes = reinterpret_cast<std::uintptr_t>(&number)};
}

Status ShmMemory::find_process(Rank peer) {
  Result<ProcessHandle> process = ProcessHandle::of_socket(channels_[peer]->descriptor());
  if (process.ok()) peers_[peer].process = PeerProcess(std::move(*process), peer);
  return process.status();
}

void ShmMemory::prove(Rank peer, const Notice& proof) {
  const Status status = process(peer).prove(proof.bytes, proof.region);
  peers_[peer].is_proved = status.ok();
  if (status.ok()) return;
  log(LogLevel::info,
      "the private memory of rank {} cannot be reached: {}. Private buffers pass through shared "
      "memory",
      peer.value(), status.message());
}

Status ShmMemory::get(Rank peer, RemoteAddress from, ByteSpan to) const {
  if (!reaches_private(peer)) return SharedMemory::get(peer, from, to);
  return process(peer).get(from.offset_bytes, to);
}

Status ShmMemory::put(Rank peer, ConstByteSpan from, RemoteAddress to) const {
  if (!reaches_private(peer)) return SharedMemory::put(peer, from, to);
  return process(peer).put(from, to.offset_bytes);
}

std::size_t ShmMemory::mapped_bytes() const {
  std::size_t bytes = 0;
  for (const PeerRegions& regions : peers_) bytes += writable_bytes(regions.table);
  const MutexLock lock(mutex_);
  return bytes + writable_bytes(own_);
}

// An inbox has a ring for each rank of the job, but only ranks of this host write to any.
std::size_t ShmMemory::writable_bytes(const RegionTable& table) const {
  const std::size_t bytes = table.total_bytes();
  const std::size_t inbox_bytes = Inbox::bytes(static_cast<int>(channels_.size()));
  if (table.find(kInbox, inbox_bytes) == nullptr) return bytes;
  const auto peers =
      std::ranges::count_if(channels_, [](const auto& channel) { return channel != nullptr; });
  return bytes - inbox_bytes + Inbox::bytes(static_cast<int>(peers) + 1);
}

void ShmMemory::receive(Rank peer, Channel::Received received) {
  PeerRegions& regions = peers_[peer];
  const Notice& notice = received.notice;
  if (notice.kind == Notice::Kind::release) {
    regions.table.erase(notice.region);
    regions.unmapped.erase(notice.region);
    generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  if (notice.kind == Notice::Kind::proof && !std::exchange(regions.has_told_proof, true)) {
    return prove(peer, notice);
  }
  if (notice.kind != Notice::Kind::region) return;
  map_region(peer, notice.region, std::move(received.descriptor), notice.bytes);
}

Result<MappableMemory::Mapping> ShmMemory::open(std::uint32_t number, const FileDescriptor& file,
                                                std::size_t bytes) {
  if (RemoteAddress{number}.kind() != MemoryKind::device) return FileMemory().open(file, bytes);
  if (device() != nullptr) return device()->open(file, bytes);
  return status_of(StatusCode::protocol, "it lies on a device, and this rank has none");
}

void ShmMemory::map_region(Rank peer, std::uint32_t number, FileDescriptor file,
                           std::size_t bytes) {
  PeerRegions& regions = peers_[peer];
  Result<MappableMemory::Mapping> mapping = open(number, file, bytes);
  if (!mapping.ok() && mapping.status().code() != StatusCode::protocol) {
    regions.unmapped.insert_or_assign(number, Unmapped{std::move(file), bytes, mapping.status()});
    return;
  }
  if (!mapping.ok()) {
    log(LogLevel::warning, "rank {} offered memory that is not used: {}", peer.value(),
        mapping.status().message());
    return;
  }
  regions.table.insert(number, {mapping->data.get(), mapping->bytes}, mapping->data);
  generation_.fetch_add(1, std::memory_order_release);
}

// Tries again to take files and to map regions for which there was no room before.
void ShmMemory::look_for_room() {
  const TimePoint now = Clock::now();
  if (now < look_at_) return;
  look_at_ = now + kLookPause;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const Rank rank = static_cast<int>(peer);
    Channel* const channel = channels_[rank].get();
    if (channel != nullptr && channel->stuck()) {
      // Also takes what has come behind it, of which no event tells.
      while (std::optional<Channel::Received> received = channel->receive()) {
        receive(rank, std::move(*received));
      }
    }
    for (auto& [number, region] : std::exchange(peers_[rank].unmapped, {})) {
      map_region(rank, number, std::move(region.file), region.bytes);
    }
  }
}

Status ShmMemory::find_shortage(Rank peer, RemoteAddress address) const {
  if (channels_[peer] == nullptr) return {};
  std::size_t bytes = 0;
  Status cause;
  const auto unmapped = peers_[peer].unmapped.find(address.region);
  if (unmapped != peers_[peer].unmapped.end()) {
    bytes = unmapped->second.bytes;
    cause = unmapped->second.cause;
  } else if (const auto& stuck = channels_[peer]->stuck()) {
    bytes = stuck->notice.bytes;
    cause = system_status("taking its file", stuck->error_number);
  }
  if (cause.ok()) return {};
  return {
      StatusCode::system,
      fmt::format("rank {} cannot map {:.1f} MiB of shared memory of rank {}: {}", self_.value(),
                  static_cast<double>(bytes) / kMib, peer.value(), cause.message()),
      self_};
}

void ShmMemory::service() {
  for (auto& channel : channels_) {
    if (channel != nullptr) channel->flush();
  }
  look_for_room();
  if (!any_released_.load(std::memory_order_relaxed)) return;
  std::vector<std::uint32_t> released;
  {
    const MutexLock lock(mutex_);
    released = released_;
  }
  for (const std::uint32_t number : released) {
    for (auto& channel : channels_) {
      // A peer that reads little of its channel need not hear of a region that has come and gone
      // meanwhile; the region's file would be kept open for that.
      if (channel == nullptr || channel->take_back(number)) continue;
      channel->send({.kind = Notice::Kind::release, .region = number});
    }
  }
  // Only now, so that what could not be told for lack of memory is told the next time.
  const MutexLock lock(mutex_);
  released_.erase(released_.begin(), released_.begin() + std::ssize(released));
  any_released_.store(!released_.empty(), std::memory_order_relaxed);
}

}  // namespace stretto::transport::shm

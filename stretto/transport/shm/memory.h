// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/memory.h"
#include "stretto/transport/shm/channel.h"
#include "stretto/transport/shm/peer_process.h"

namespace stretto::transport::shm {

// The inbox of every rank is its first region.
inline constexpr RemoteAddress kInbox{.region = 1, .offset_bytes = 0};

// Unnamed files in memory (memfd). Only memory limits their size, and they are gone with the last
// process that maps them, however it ends.
class FileMemory final : public MappableMemory {
 public:
  // The file is sealed: its size and seals cannot change, so peers can trust its size.
  Result<Mapping> create(std::size_t bytes) override;
  // Fails with protocol if the file lacks these seals (access to pages that have gone would raise
  // SIGBUS) or is smaller than the peer says; with system if this process has no room for it.
  Result<Mapping> open(const FileDescriptor& descriptor, std::size_t bytes) override;
};

// Memory shared between processes of a host, and that of their devices. Allocating sends the file
// to every peer on its channel; freeing tells the peers to unmap it. A peer that lacks the
// resources to map a region tries again as long as the region exists.
class ShmMemory : public SharedMemory, public std::enable_shared_from_this<ShmMemory> {
 public:
  // channels[r] leads to rank r; null where there is none (the rank itself, other hosts).
  ShmMemory(Rank self, std::vector<std::shared_ptr<Channel>> channels);

  Result<Region> allocate(std::size_t bytes) override;
  Region share_on_device(MappableMemory::Mapping mapping, std::size_t bytes) override;
  RemoteAddress locate(const void* data, std::size_t bytes) const override;
  std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) override;
  std::shared_ptr<void> hold(Rank peer, RemoteAddress address) override;
  bool reaches(Rank peer) const override;
  Status find_shortage(Rank peer, RemoteAddress address) const override;
  std::uint64_t generation() const override { return generation_.load(std::memory_order_acquire); }

  std::size_t mapped_bytes() const override;

  // A notice of kind `proof`: what peers must find in the private memory of this rank's process, to
  // know that they have found the right process.
  Notice proof() const;
  // Finds the process of `peer`. To be called before prove(). Fails only for lack of descriptors or
  // memory.
  Status find_process(Rank peer);
  // An empty handle: the process cannot be seen from here.
  const ProcessHandle& process_of(Rank peer) const { return process(peer).handle(); }
  // Checks the `proof` that `peer` has sent. If the check fails, the peer's private memory is not
  // used; that is no failure.
  void prove(Rank peer, const Notice& proof);
  bool reaches_private(Rank peer) const override { return peers_[peer].is_proved; }
  Status get(Rank peer, RemoteAddress from, ByteSpan to) const override;
  Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const override;

  // Handles a notice of `peer` about a region, or its proof. Only its first proof counts.
  void receive(Rank peer, Channel::Received received);
  bool has_heard_proof(Rank peer) const { return peers_[peer].has_told_proof; }
  void service() override;

 private:
  // A region whose file is here, but for which this process' address space has no room, or which
  // the device could not map.
  struct Unmapped {
    FileDescriptor file;
    std::size_t bytes = 0;
    Status cause;
  };
  struct PeerRegions {
    RegionTable table;
    std::map<std::uint32_t, Unmapped> unmapped;
    PeerProcess process;
    bool has_told_proof = false;
    bool is_proved = false;
  };
  const PeerProcess& process(Rank peer) const { return peers_[peer].process; }
  Region share(std::uint32_t number, MappableMemory::Mapping mapping, std::size_t bytes);
  std::uint32_t next_number();
  bool is_in_use(std::uint32_t number) const STRETTO_REQUIRES(mutex_);
  std::size_t writable_bytes(const RegionTable& table) const;
  Result<MappableMemory::Mapping> open(std::uint32_t number, const FileDescriptor& file,
                                       std::size_t bytes);
  void map_region(Rank peer, std::uint32_t number, FileDescriptor file, std::size_t bytes);
  void look_for_room();

  Rank self_;
  RankVector<std::shared_ptr<Channel>> channels_;
  RankVector<PeerRegions> peers_;
  // Regions may be freed on any thread.
  const OwnerProcess owner_process_;
  mutable Mutex mutex_;
  RegionTable own_ STRETTO_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> released_ STRETTO_GUARDED_BY(mutex_);
  std::atomic<bool> any_released_{false};
  TimePoint look_at_;
  // Stored with release after a table has changed, loaded with acquire by callers that remember
  // what was in it.
  std::atomic<std::uint64_t> generation_{0};
  RegionNumbers numbers_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::transport::shm

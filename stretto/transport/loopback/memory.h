// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/memory.h"

namespace stretto::transport::loopback {

// The regions of all ranks of a process: one table per rank, shared by all.
struct Regions {
  Regions(int ranks, std::vector<std::int32_t> host_of_rank)
      : tables(ranks), hosts(std::move(host_of_rank)) {}
  bool are_together(Rank a, Rank b) const { return hosts.empty() || hosts[a] == hosts[b]; }
  Mutex mutex;
  RankVector<RegionTable> tables STRETTO_GUARDED_BY(mutex);
  const RankVector<std::int32_t> hosts;      // As in WorldOptions.
  std::atomic<std::uint64_t> generation{0};  // Grows with every change of a table.
  RegionNumbers numbers STRETTO_GUARDED_BY(mutex);
};

// Memory shared by ranks that are threads. All ranks with the same host number reach a region, at
// the same address; a region on a device only if they all use that device.
class LoopbackMemory : public SharedMemory {
 public:
  LoopbackMemory(Rank self, std::shared_ptr<Regions> regions)
      : self_(self), regions_(std::move(regions)) {}

  Result<Region> allocate(std::size_t bytes) override;
  Region share_on_device(MappableMemory::Mapping mapping, std::size_t bytes) override;
  RemoteAddress locate(const void* data, std::size_t bytes) const override;
  std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) override;
  std::shared_ptr<void> hold(Rank peer, RemoteAddress address) override;
  bool reaches(Rank peer) const override { return regions_->are_together(self_, peer); }
  // Memory is private to a rank by agreement only: the process is the same.
  bool reaches_private(Rank peer) const override { return reaches(peer); }
  Status get(Rank peer, RemoteAddress from, ByteSpan to) const override;
  Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const override;
  std::uint64_t generation() const override {
    return regions_->generation.load(std::memory_order_acquire);
  }

 private:
  Region share(Region region, MemoryKind kind);

  Rank self_;
  std::shared_ptr<Regions> regions_;
};

}  // namespace stretto::transport::loopback

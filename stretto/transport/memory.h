// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/transport/transport.h"

namespace stretto::transport {

// The one-sided half of a transport: memory that several ranks have mapped. One implementation per
// kind of transport that can do it (loopback/memory.h, shm/memory.h); PrivateMemory where none can.
//
// Not thread safe, except that a Region's owner may be dropped, and reaches_private(), get() and
// put() be called, on any thread.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual Result<Transport::Region> allocate(std::size_t bytes) = 0;
  virtual RemoteAddress locate(const void* data, std::size_t bytes) const = 0;
  virtual std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) = 0;
  virtual std::shared_ptr<void> hold(Rank peer, RemoteAddress address) = 0;
  virtual bool reaches(Rank peer) const = 0;
  // See Transport::find_shortage().
  virtual Status find_shortage(Rank, RemoteAddress) const { return {}; }
  // See Transport::reaches_private(), get() and put(). Fails with internal where it is not reached.
  virtual bool reaches_private(Rank) const { return false; }
  virtual Status get(Rank peer, RemoteAddress from, ByteSpan to) const;
  virtual Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const;
  // See Transport::memory_generation().
  virtual std::uint64_t generation() const = 0;
  // Of all regions that are mapped here, those of peers included. None of memory that is not shared
  // between processes.
  virtual std::size_t mapped_bytes() const { return 0; }
  // Tells peers what they have not been told yet, such as the end of a region that another thread
  // has freed. Called now and then, and before sleeping.
  virtual void service() {}
};

// Page-aligned memory that no other rank can reach.
class PrivateMemory : public SharedMemory {
 public:
  Result<Transport::Region> allocate(std::size_t bytes) override;
  RemoteAddress locate(const void*, std::size_t) const override { return {}; }
  std::byte* resolve(Rank, RemoteAddress, std::size_t) override { return nullptr; }
  std::shared_ptr<void> hold(Rank, RemoteAddress) override { return nullptr; }
  bool reaches(Rank) const override { return false; }
  std::uint64_t generation() const override { return 0; }
};

// What a rank knows of the regions of one rank (itself or a peer): number, address, size.
class RegionTable {
 public:
  // In place of what had this number, if anything did.
  void insert(std::uint32_t region, ByteSpan bytes);
  // Returns the bytes that were there; empty if none.
  ByteSpan erase(std::uint32_t region);
  // Null unless `bytes` bytes from the offset on lie inside the region. Offset and length may come
  // from a peer: checked without overflow.
  std::byte* find(RemoteAddress address, std::size_t bytes) const;
  RemoteAddress locate(const void* data, std::size_t bytes) const;
  // Of all regions together.
  std::size_t total_bytes() const;

 private:
  struct Entry {
    std::uint32_t region;
    ByteSpan bytes;
  };
  std::vector<Entry> entries_;  // A rank has a handful of regions: searched in order.
};

}  // namespace stretto::transport

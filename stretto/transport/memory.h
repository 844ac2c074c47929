// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport {

// What kind of memory bytes of a rank lie in: how this process, and other ranks, get at them.
enum class MemoryKind : std::uint8_t {
  host,        // Others do not: it is its process' alone.
  registered,  // It lies in a region, which they have mapped.
  process,     // As host, but they copy from and to it, by get() and put().
  device,      // A device's: only what runs there does, of others in a region or by a library.
};

// Where bytes begin, in what kind of memory, and whose they are.
struct BufferRef {
  // In this process. Of kind process, in its owner's; of kind device, as its library counts.
  std::byte* data = nullptr;
  MemoryKind kind = MemoryKind::host;
  Rank owner = 0;  // In the group.

  // Of the host; what comes const is only read.
  static BufferRef own(const void* data) {
    return {.data = static_cast<std::byte*>(const_cast<void*>(data))};
  }
};

// Bytes of a rank, as other ranks are told of them.
struct RemoteAddress {
  std::uint32_t region = 0;        // Of its owner, device() of it; or what stands for a process.
  std::uint64_t offset_bytes = 0;  // In the region. Of kind process: the address there.

  static RemoteAddress in_process(const void* data) {
    return {kProcess, reinterpret_cast<std::uintptr_t>(data)};
  }
  // The number of a region in memory of a device, made of one of RegionNumbers.
  static constexpr std::uint32_t on_device(std::uint32_t region) { return region | kDevice; }
  bool valid() const { return region != 0; }
  MemoryKind kind() const {
    if (!valid()) return MemoryKind::host;
    if (region == kProcess) return MemoryKind::process;
    return (region & kDevice) != 0 ? MemoryKind::device : MemoryKind::registered;
  }

 private:
  static constexpr std::uint32_t kDevice = 0x80000000;
  static constexpr std::uint32_t kProcess = 0xffffffff;
};

// Which numbers regions get: 1, which is no other's ever again, and so on until one would mean
// another kind of memory, then from 2 on again. Whoever asks passes over those in use.
class RegionNumbers {
 public:
  explicit RegionNumbers(std::uint32_t last = 0) : last_(last) {}
  std::uint32_t next() { return last_ = last_ == kLast ? 2 : last_ + 1; }

  static constexpr std::uint32_t kLast = 0x7ffffffe;

 private:
  std::uint32_t last_;
};

// Memory of this rank that others may have mapped.
struct Region {
  RemoteAddress address;
  ByteSpan bytes;
  std::shared_ptr<void> owner;  // Unmaps when the last copy goes; any thread.
};

// Memory of one kind that other processes of the host map by a descriptor. Any thread.
class MappableMemory {
 public:
  // Unmaps when the last copy of `data` goes.
  struct Mapping {
    FileDescriptor descriptor;
    std::shared_ptr<std::byte> data;
    std::size_t bytes = 0;
  };
  virtual ~MappableMemory() = default;
  // Zeroed. At least so many bytes, to which the descriptor leads.
  virtual Result<Mapping> create(std::size_t bytes) = 0;
  // Maps what a peer has sent; the descriptor is not needed any more, nor kept. Fails with protocol
  // if it is of another kind or shorter; else for what may be over soon, or for good.
  virtual Result<Mapping> open(const FileDescriptor& descriptor, std::size_t bytes) = 0;
};

// The one-sided half of a transport: memory that several ranks have mapped, or reach in another
// way. One implementation per kind of transport that can do it (loopback/memory.h, shm/memory.h);
// PrivateMemory where none can.
//
// Not thread safe, except that a Region's owner may be dropped, and reaches_private(), get(), put()
// and generation() be called, on any thread.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Zeroed, page aligned, and reachable by the ranks for which reaches() holds, soon after this
  // returns (resolve() says when).
  virtual Result<Region> allocate(std::size_t bytes) = 0;
  // What maps memory of kind device, before this rank or a peer shares any.
  void use_device(std::shared_ptr<MappableMemory> device) { device_ = std::move(device); }
  // What that has created for this rank, `bytes` of it: reachable as what allocate() returns.
  virtual Region share_on_device(MappableMemory::Mapping mapping, std::size_t bytes);
  // The address of bytes of this rank that lie inside one region, or none.
  virtual RemoteAddress locate(const void* data, std::size_t bytes) const = 0;
  // Bytes of `peer` (or of this rank) in this process; null if the region is not known (yet) or the
  // range does not lie in it.
  virtual std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) = 0;
  // Keeps a region mapped here even after its owner has freed it; null if it is not known (yet).
  virtual std::shared_ptr<void> hold(Rank peer, RemoteAddress address) = 0;
  virtual bool reaches(Rank peer) const = 0;
  // Why a region of `peer` that is not known here has come, but cannot be taken in: what this
  // process lacks, in a sentence. Ok: it has not come. The region is taken in as soon as the
  // shortage is over.
  virtual Status find_shortage(Rank, RemoteAddress) const { return {}; }
  // Whether get() and put() reach the private memory of `peer`, as far as the system allows one
  // process to reach another's.
  virtual bool reaches_private(Rank) const { return false; }
  // Copies private memory of `peer`, where reaches_private() holds. Whoever asks makes sure that
  // the owner neither frees nor, against the copy, uses it meanwhile: by messages, or by what both
  // have mapped, with release and acquire. Returns when all is copied. Fails with peer_lost if the
  // process is gone, with internal where it is not reached and, between processes, with system if
  // one of the two has no such memory (any more); some bytes may have been copied then.
  virtual Status get(Rank peer, RemoteAddress from, ByteSpan to) const;
  virtual Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const;
  // Grows whenever locate() or resolve() may answer otherwise than before.
  virtual std::uint64_t generation() const = 0;
  // Of all regions of hosts that are mapped here, those of peers included, as far as anybody may
  // write to them. None of memory that is not shared between processes.
  virtual std::size_t mapped_bytes() const { return 0; }
  // Tells peers what they have not been told yet, such as the end of a region that another thread
  // has freed. Called now and then, and before sleeping.
  virtual void service() {}

 protected:
  MappableMemory* device() const { return device_.get(); }

 private:
  std::shared_ptr<MappableMemory> device_;
};

// Page-aligned memory that no other rank can reach.
class PrivateMemory : public SharedMemory {
 public:
  Result<Region> allocate(std::size_t bytes) override;
  RemoteAddress locate(const void*, std::size_t) const override { return {}; }
  std::byte* resolve(Rank, RemoteAddress, std::size_t) override { return nullptr; }
  std::shared_ptr<void> hold(Rank, RemoteAddress) override { return nullptr; }
  bool reaches(Rank) const override { return false; }
  std::uint64_t generation() const override { return 0; }
};

// What a rank knows of the regions of one rank (itself or a peer): number, address, size.
class RegionTable {
 public:
  // Replaces what had this number, if anything did. Keeps the owner, if any, as long as the entry.
  void insert(std::uint32_t region, ByteSpan bytes, std::shared_ptr<void> owner = nullptr);
  void erase(std::uint32_t region);
  // Null unless `bytes` bytes from the offset on lie inside the region. Offset and length may come
  // from a peer: checked without overflow.
  std::byte* find(RemoteAddress address, std::size_t bytes) const;
  // The owner of the region; null if it has none, or is not known.
  std::shared_ptr<void> hold(RemoteAddress address) const;
  RemoteAddress locate(const void* data, std::size_t bytes) const;
  std::size_t size() const { return entries_.size(); }
  // How long all regions in memory of the host are together.
  std::size_t total_bytes() const;

 private:
  struct Entry {
    std::uint32_t region;
    ByteSpan bytes;
    std::shared_ptr<void> owner;
  };
  std::vector<Entry> entries_;  // A rank has a handful of regions: searched in order.
};

}  // namespace stretto::transport

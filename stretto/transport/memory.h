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

// The kind of memory in which bytes of a rank lie: how this process and other ranks access them.
enum class MemoryKind : std::uint8_t {
  host,        // Only its own process accesses it.
  registered,  // It lies in a region, which other ranks have mapped.
  process,     // As host, but other ranks copy from and to it, by get() and put().
  device,      // Only work on the device accesses it; that of other ranks in a region, or by a
               // library.
};

// Where bytes begin, in what kind of memory, and whose they are.
struct BufferRef {
  // An address in this process; of kind process, in its owner's; of kind device, of its library.
  std::byte* data = nullptr;
  MemoryKind kind = MemoryKind::host;
  Rank owner = 0;  // In the group.

  // A buffer of this rank in host memory. Memory that is passed as const is only read.
  static BufferRef own(const void* data) {
    return {.data = static_cast<std::byte*>(const_cast<void*>(data))};
  }
};

// The address of bytes of a rank, as it is told to other ranks.
struct RemoteAddress {
  std::uint32_t region = 0;        // A number of its owner's, or on_device() of it; or kProcess.
  std::uint64_t offset_bytes = 0;  // In the region. Of kind process: the address in that process.

  static RemoteAddress in_process(const void* data) {
    return {kProcess, reinterpret_cast<std::uintptr_t>(data)};
  }
  // Makes the number of a region in device memory from one of RegionNumbers.
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

// Hands out numbers for regions: from 1 to kLast, and then from 2 again. So the number 1 is given
// once only, and no number means another kind of memory. The caller skips numbers in use.
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
  // Creates at least `bytes` zeroed bytes, which others can map by the descriptor.
  virtual Result<Mapping> create(std::size_t bytes) = 0;
  // Maps memory of a peer; does not keep the descriptor. Fails with protocol if the memory is of
  // another kind or shorter than `bytes`. Any other failure may be over soon, or last.
  virtual Result<Mapping> open(const FileDescriptor& descriptor, std::size_t bytes) = 0;
};

// The one-sided half of a transport: memory that several ranks have mapped, or reach in another
// way. One implementation per kind of transport that can do it (loopback/memory.h, shm/memory.h);
// PrivateMemory where none can.
//
// Not thread safe, except that any thread may drop a Region's owner and call reaches_private(),
// get(), put() and generation().
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Allocates zeroed, page-aligned memory. The ranks for which reaches() holds can reach it soon
  // after this returns; their resolve() says when.
  virtual Result<Region> allocate(std::size_t bytes) = 0;
  // Sets what maps memory of kind device. To be called before this rank or a peer shares any.
  void use_device(std::shared_ptr<MappableMemory> device) { device_ = std::move(device); }
  // Shares the first `bytes` of a `mapping` that the device has created for this rank: others can
  // then reach them like memory from allocate().
  virtual Region share_on_device(MappableMemory::Mapping mapping, std::size_t bytes);
  // The address of bytes of this rank that lie inside one region, or none.
  virtual RemoteAddress locate(const void* data, std::size_t bytes) const = 0;
  // Bytes of `peer` (or of this rank) in this process; null if the region is not known (yet) or the
  // range does not lie in it.
  virtual std::byte* resolve(Rank peer, RemoteAddress address, std::size_t bytes) = 0;
  // The result keeps a region mapped here even after its owner has freed it; null if the region is
  // not known (yet).
  virtual std::shared_ptr<void> hold(Rank peer, RemoteAddress address) = 0;
  virtual bool reaches(Rank peer) const = 0;
  // What this process lacks, in a sentence, to map a region of the peer that has come. Ok: it lacks
  // nothing, or the region has not come. The region is mapped when the shortage is over.
  virtual Status find_shortage(Rank, RemoteAddress) const { return {}; }
  // Whether get() and put() reach the private memory of `peer`, as far as the system allows one
  // process to reach another's.
  virtual bool reaches_private(Rank) const { return false; }
  // Copy from and to private memory of `peer`, where reaches_private() holds. The caller makes sure
  // that the owner neither frees the memory nor accesses it in conflict with the copy: by messages,
  // or by memory that both have mapped, with release and acquire. Return when all is copied. Fail
  // with peer_lost if the process is gone, with internal if it cannot be reached and, between
  // processes, with system if one of the two has no such memory (any more); some bytes may have
  // been copied then.
  virtual Status get(Rank peer, RemoteAddress from, ByteSpan to) const;
  virtual Status put(Rank peer, ConstByteSpan from, RemoteAddress to) const;
  // Grows whenever locate() or resolve() may answer differently from before.
  virtual std::uint64_t generation() const = 0;
  // Total bytes of the regions in host memory that are mapped here, including those of peers, as
  // far as any rank may write to them. 0 if memory is not shared between processes.
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
  // Replaces the entry with this number, if there is one. An entry keeps its `owner`, if any.
  void insert(std::uint32_t region, ByteSpan bytes, std::shared_ptr<void> owner = nullptr);
  void erase(std::uint32_t region);
  // Null unless `bytes` bytes from the offset on lie inside the region. Offset and length may come
  // from a peer, so they are checked without overflow.
  std::byte* find(RemoteAddress address, std::size_t bytes) const;
  // The owner of the region; null if it has none, or is not known.
  std::shared_ptr<void> hold(RemoteAddress address) const;
  RemoteAddress locate(const void* data, std::size_t bytes) const;
  std::size_t size() const { return entries_.size(); }
  // Total bytes of the regions in host memory.
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

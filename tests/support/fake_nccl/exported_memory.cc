// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Memory of the double's device that is exported as a file: see fake.h. It cannot be accessed at
// the addresses that a program knows; the double accesses it at others.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <set>
#include <utility>

#include "stretto/cuda_driver/driver.h"
#include "tests/support/fake_nccl/fake.h"

namespace stretto::fake_nccl {
namespace {

constexpr int kSuccess = 0;
constexpr int kPeerAccessUnsupported = 217;
constexpr std::size_t kUnitBytes = 64 * 1024;
constexpr int kReadWrite = 3;

struct Handle {
  int file = -1;
  std::size_t bytes = 0;
  int device = -1;
  bool is_own = false;  // Not imported.
};

struct Place {
  std::size_t bytes = 0;
  std::byte* reached = nullptr;  // Null: nothing is mapped there.
  int device = -1;
  bool is_own = false;
  std::set<int> with_access = {};
};

// Guards places(). A caller that asks where memory is may hold the double's mutex.
std::mutex& places_mutex() {
  static auto* const made = new std::mutex;
  return *made;
}

// Keys: the addresses that the program knows.
std::map<const std::byte*, Place>& places() {
  static auto* const all = new std::map<const std::byte*, Place>;
  return *all;
}

// Returns the place in which `data` lies, or null.
std::pair<const std::byte* const, Place>* find(const void* data) {
  const auto* const at = static_cast<const std::byte*>(data);
  const auto behind = places().upper_bound(at);
  if (behind == places().begin()) return nullptr;
  auto& found = *std::prev(behind);
  const bool is_there = at < found.first + found.second.bytes;
  return is_there && found.second.reached != nullptr ? &found : nullptr;
}

Handle* handle_of(std::uint64_t number) { return reinterpret_cast<Handle*>(number); }

Place* place_at(std::uint64_t pointer, std::size_t bytes) {
  const auto found = places().find(reinterpret_cast<const std::byte*>(pointer));
  return found == places().end() || found->second.bytes != bytes ? nullptr : &found->second;
}

}  // namespace

std::byte* reach_exported(const void* data) {
  const std::lock_guard held(places_mutex());
  const auto* const found = find(data);
  if (found == nullptr) return nullptr;
  if (has_context() && !found->second.with_access.contains(current_device())) {
    return static_cast<std::byte*>(const_cast<void*>(data));
  }
  return found->second.reached + (static_cast<const std::byte*>(data) - found->first);
}

int device_of_exported(const void* data) {
  const std::lock_guard held(places_mutex());
  const auto* const found = find(data);
  return found == nullptr ? -1 : found->second.device;
}

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;
using stretto::cuda::MemoryAccess;
using stretto::cuda::MemoryProperties;

extern "C" {

int cuMemGetAllocationGranularity(std::size_t* bytes, const MemoryProperties* like, int option) {
  *bytes = kUnitBytes;
  return like->location.type == 1 && option == 0 ? kSuccess : kInvalidValue;
}
int cuMemCreate(std::uint64_t* handle, std::size_t bytes, const MemoryProperties* like,
                unsigned long long flags) {
  const std::lock_guard held(shared().mutex);
  const bool is_right = like->type == 1 && like->handle_types == 1 && like->location.type == 1 &&
                        like->location.number < shared().control.devices && flags == 0;
  if (!is_right || bytes == 0 || bytes % kUnitBytes != 0) return kInvalidValue;
  Control& control = shared().control;
  if (bytes > control.exportable_bytes - control.exported_bytes) return kOutOfMemory;
  const int file = ::memfd_create("fake device", MFD_CLOEXEC);
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  control.exported_bytes += bytes;
  *handle = reinterpret_cast<std::uintptr_t>(
      new Handle{.file = file, .bytes = bytes, .device = like->location.number, .is_own = true});
  return kSuccess;
}
int cuMemRelease(std::uint64_t number) {
  Handle* const handle = handle_of(number);
  ::close(handle->file);
  delete handle;
  return kSuccess;
}
int cuMemExportToShareableHandle(void* descriptor, std::uint64_t handle, int type,
                                 unsigned long long) {
  if (type != 1) return kInvalidValue;
  *static_cast<int*>(descriptor) = ::fcntl(handle_of(handle)->file, F_DUPFD_CLOEXEC, 0);
  return kSuccess;
}
int cuMemImportFromShareableHandle(std::uint64_t* handle, void* descriptor, int type) {
  struct stat info {};
  const auto file = static_cast<int>(reinterpret_cast<std::uintptr_t>(descriptor));
  if (type != 1 || ::fstat(file, &info) != 0) return kInvalidValue;
  *handle =
      reinterpret_cast<std::uintptr_t>(new Handle{.file = ::fcntl(file, F_DUPFD_CLOEXEC, 0),
                                                  .bytes = static_cast<std::size_t>(info.st_size),
                                                  .device = current_device()});
  return kSuccess;
}
int cuMemAddressReserve(std::uint64_t* pointer, std::size_t bytes, std::size_t, std::uint64_t,
                        unsigned long long) {
  void* const known = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (known == MAP_FAILED) return kOutOfMemory;
  const std::scoped_lock held(shared().mutex, places_mutex());
  places()[static_cast<std::byte*>(known)] = {.bytes = bytes};
  ++shared().control.reserved_places;
  *pointer = reinterpret_cast<std::uintptr_t>(known);
  return kSuccess;
}
int cuMemAddressFree(std::uint64_t pointer, std::size_t bytes) {
  const std::scoped_lock held(shared().mutex, places_mutex());
  const Place* const place = place_at(pointer, bytes);
  if (place == nullptr || place->reached != nullptr) {
    shared().misused("a place is freed that is not reserved, or holds memory");
    return kInvalidValue;
  }
  places().erase(reinterpret_cast<const std::byte*>(pointer));
  ::munmap(reinterpret_cast<void*>(pointer), bytes);
  --shared().control.reserved_places;
  return kSuccess;
}
int cuMemMap(std::uint64_t pointer, std::size_t bytes, std::size_t offset, std::uint64_t number,
             unsigned long long) {
  const std::scoped_lock held(shared().mutex, places_mutex());
  Place* const place = place_at(pointer, bytes);
  const Handle& handle = *handle_of(number);
  if (place == nullptr || place->reached != nullptr || offset != 0 || bytes > handle.bytes) {
    return kInvalidValue;
  }
  void* const reached = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle.file, 0);
  if (reached == MAP_FAILED) return kOutOfMemory;
  place->reached = static_cast<std::byte*>(reached);
  place->device = handle.device;
  place->is_own = handle.is_own;
  ++shared().control.mapped_places;
  return kSuccess;
}
int cuMemUnmap(std::uint64_t pointer, std::size_t bytes) {
  const std::scoped_lock held(shared().mutex, places_mutex());
  Place* const place = place_at(pointer, bytes);
  if (place == nullptr || place->reached == nullptr) {
    shared().misused("a place is unmapped that holds no memory");
    return kInvalidValue;
  }
  ::munmap(place->reached, bytes);
  if (place->is_own) shared().control.exported_bytes -= bytes;
  *place = {.bytes = bytes};
  --shared().control.mapped_places;
  return kSuccess;
}
int cuMemSetAccess(std::uint64_t pointer, std::size_t bytes, const MemoryAccess* access,
                   std::size_t count) {
  if (!has_context()) return kInvalidContext;
  const std::scoped_lock held(shared().mutex, places_mutex());
  Place* const place = place_at(pointer, bytes);
  if (place == nullptr || place->reached == nullptr || count != 1 || access->flags != kReadWrite) {
    return kInvalidValue;
  }
  if (shared().control.refuses_peers && !place->is_own) return kPeerAccessUnsupported;
  place->with_access.insert(access->location.number);
  return kSuccess;
}
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The half of the double that is a device: see fake.h.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "tests/support/fake_nccl/fake.h"

namespace stretto::fake_nccl {
namespace {

constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;
constexpr int kAlreadyLocked = 712;
constexpr std::size_t kDeviceBytes = std::size_t{256} * 1024 * 1024;

thread_local std::vector<int> contexts;

// The memory of devices, mapped twice: no one can access it where the program knows it.
struct Pages {
  Pages() {
    const int file = ::memfd_create("fake device", MFD_CLOEXEC);
    if (::ftruncate(file, kDeviceBytes) != 0) return;
    known = static_cast<std::byte*>(::mmap(nullptr, kDeviceBytes, PROT_NONE, MAP_SHARED, file, 0));
    reached = static_cast<std::byte*>(
        ::mmap(nullptr, kDeviceBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
  }
  std::byte* known = nullptr;
  std::byte* reached = nullptr;
  std::size_t taken = 0;
  std::map<std::size_t, int> devices;  // Keys: where blocks begin.
};

Pages& pages() {
  static auto* const made = new Pages;
  return *made;
}

// The sizes of locked pieces of host memory, by their addresses.
std::map<const void*, std::size_t>& locked() {
  static auto* const made = new std::map<const void*, std::size_t>;
  return *made;
}

bool is_locked(const void* data) {
  const std::lock_guard held(shared().mutex);
  const auto behind = locked().upper_bound(data);
  if (behind == locked().begin()) return false;
  const auto& [begin, bytes] = *std::prev(behind);
  return data < static_cast<const std::byte*>(begin) + bytes;
}

}  // namespace

Shared& shared() {
  static auto* const made = new Shared;
  return *made;
}

bool is_in_pages(const void* data) {
  const auto* at = static_cast<const std::byte*>(data);
  return at >= pages().known && at < pages().known + kDeviceBytes;
}

bool is_device_memory(const void* data) {
  return is_in_pages(data) || device_of_exported(data) >= 0;
}

std::byte* reach(const void* data) {
  if (std::byte* const exported = reach_exported(data)) return exported;
  if (!is_in_pages(data)) return static_cast<std::byte*>(const_cast<void*>(data));
  return pages().reached + (static_cast<const std::byte*>(data) - pages().known);
}

bool has_context() { return !contexts.empty(); }
int current_device() { return contexts.empty() ? -1 : contexts.back(); }

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;

extern "C" {

void fake_nccl_change(void (*change)(Control&, void*), void* what) {
  const std::lock_guard held(shared().mutex);
  change(shared().control, what);
  shared().changed.notify_all();
}

std::byte* fake_nccl_reach(const void* data) { return reach(data); }

int cuInit(unsigned) {
  const std::lock_guard held(shared().mutex);
  return shared().control.devices == 0 ? kNoDevice : kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the double's device";
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  const std::lock_guard held(shared().mutex);
  *count = shared().control.devices;
  return kSuccess;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return kSuccess;
}
int cuDeviceGetName(char* name, int room, int) {
  std::strncpy(name, "a double", static_cast<std::size_t>(room));
  return kSuccess;
}
int cuDeviceGetUuid_v2(void* uuid, int device) {
  std::memset(uuid, device, 16);
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
  return kSuccess;
}
int cuCtxPopCurrent_v2(void**) {
  if (contexts.empty()) return kInvalidContext;
  contexts.pop_back();
  return kSuccess;
}
int cuPointerGetAttribute(void* value, int attribute, std::uint64_t pointer) {
  const std::lock_guard held(shared().mutex);
  if (const int error = shared().control.stream_error) return error;
  if (!is_device_memory(reinterpret_cast<const void*>(pointer))) return kInvalidValue;
  if (attribute == 9 && !is_in_pages(reinterpret_cast<const void*>(pointer))) {
    *static_cast<int*>(value) = device_of_exported(reinterpret_cast<const void*>(pointer));
    return kSuccess;
  }
  const auto at =
      static_cast<std::size_t>(reinterpret_cast<const std::byte*>(pointer) - pages().known);
  if (attribute == 2) *static_cast<unsigned*>(value) = 2;
  if (attribute == 8) *static_cast<unsigned*>(value) = 0;
  if (attribute == 9)
    *static_cast<int*>(value) = std::prev(pages().devices.upper_bound(at))->second;
  return kSuccess;
}
int cuMemAlloc_v2(std::uint64_t* pointer, std::size_t bytes) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  Pages& all = pages();
  const std::size_t rounded = (bytes + 255) / 256 * 256;
  const bool has_room = !shared().control.has_no_memory && all.taken + rounded <= kDeviceBytes;
  if (!has_room) return kOutOfMemory;
  *pointer = reinterpret_cast<std::uintptr_t>(all.known + all.taken);
  all.devices[all.taken] = current_device();
  all.taken += rounded;
  ++shared().control.allocations;
  return kSuccess;
}
int cuMemFree_v2(std::uint64_t) { return has_context() ? kSuccess : kInvalidContext; }
int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  std::byte* const target = reach(reinterpret_cast<void*>(to));
  const std::byte* const source = reach(reinterpret_cast<const void*>(from));
  // The driver copies host memory that is not locked through its own buffers when its turn comes,
  // and blocks until then.
  for (const std::uint64_t end : {to, from}) {
    const auto* const data = reinterpret_cast<const void*>(end);
    if (!is_device_memory(data) && !is_locked(data)) finish(stream);
  }
  enqueue(stream, [=] { std::copy_n(source, bytes, target); });
  return kSuccess;
}
int cuMemsetD8_v2(std::uint64_t to, unsigned char value, std::size_t bytes) {
  if (!has_context()) return kInvalidContext;
  {
    const std::lock_guard held(shared().mutex);
    if (const int refusal = shared().refusal_on(nullptr)) return refusal;
  }
  std::byte* const target = reach(reinterpret_cast<void*>(to));
  enqueue(nullptr, [=] { std::fill_n(target, bytes, std::byte{value}); });
  return kSuccess;
}
int cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned flags) {
  constexpr unsigned kPortable = 1;
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  if (shared().control.refuses_locks || bytes == 0) return kInvalidValue;
  if (flags != kPortable) shared().misused("pages are locked for one device only");
  if (!locked().emplace(data, bytes).second) return kAlreadyLocked;
  ++shared().control.locked_pieces;
  return kSuccess;
}
int cuMemHostUnregister(void* data) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  if (locked().erase(data) == 0) {
    shared().misused("memory is unlocked that is not locked");
    return kInvalidValue;
  }
  --shared().control.locked_pieces;
  return kSuccess;
}
}

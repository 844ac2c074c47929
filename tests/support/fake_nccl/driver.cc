// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The half of the double that is a device: see fake.h.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "tests/support/fake_nccl/fake.h"

namespace stretto::fake_nccl {
namespace {

constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr int kAlreadyLocked = 712;
constexpr int kStreamCaptureUnsupported = 900;
constexpr int kStreamCaptureImplicit = 906;
constexpr int kRelaxed = 2;
constexpr std::size_t kMostDevices = 8;
constexpr std::size_t kDeviceBytes = std::size_t{256} * 1024 * 1024;

thread_local std::vector<int> contexts;
thread_local int capture_mode = 0;

// The same pages twice: where the program knows them nobody may touch them.
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
  std::map<std::size_t, int> devices;  // Of blocks, by where they begin.
};

Pages& pages() {
  static auto* const made = new Pages;
  return *made;
}

// What the host has locked, by where it begins.
std::set<void*>& locked() {
  static auto* const made = new std::set<void*>;
  return *made;
}

}  // namespace

Shared& shared() {
  static auto* const made = new Shared;
  return *made;
}

int Shared::refusal_on(StreamHandle stream) {
  if (!control.captures || stream != nullptr) return kSuccess;
  control.has_spoiled_capture = true;
  return kStreamCaptureImplicit;
}

int Shared::refusal_of_question() {
  if (!control.captures || capture_mode == kRelaxed) return kSuccess;
  control.has_spoiled_capture = true;
  return kStreamCaptureUnsupported;
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

namespace stretto::cuda {

// What a stream is here: a thread that does what comes, one after the other.
struct OpaqueStream {
  std::deque<std::function<void()>> work;
  std::uint64_t begun = 0;  // That have been enqueued.
  std::uint64_t ended = 0;
  bool stops = false;
  std::thread thread;

  void run() {
    auto& common = fake_nccl::shared();
    std::unique_lock held(common.mutex);
    while (true) {
      common.changed.wait(held, [&] { return stops || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      const auto delay = common.delay();
      held.unlock();
      std::this_thread::sleep_for(delay);
      next();
      held.lock();
      ++ended;
      common.changed.notify_all();
    }
  }
};

}  // namespace stretto::cuda

namespace stretto::fake_nccl {
namespace {

auto& all_streams() {
  static auto* const all = new std::vector<std::unique_ptr<cuda::OpaqueStream>>;
  return *all;
}

cuda::OpaqueStream* make_stream() {
  const std::lock_guard held(shared().mutex);
  auto* const stream = all_streams().emplace_back(std::make_unique<cuda::OpaqueStream>()).get();
  stream->thread = std::thread([stream] { stream->run(); });
  return stream;
}

// Each device has a default one.
cuda::OpaqueStream* stream_of(StreamHandle stream) {
  static auto* const defaults = [] {
    auto* const made = new std::array<cuda::OpaqueStream*, kMostDevices>;
    for (cuda::OpaqueStream*& each : *made) {
      each = make_stream();
      each->thread.detach();
    }
    return made;
  }();
  return stream == nullptr ? defaults->at(static_cast<std::size_t>(current_device())) : stream;
}

struct Event {
  cuda::OpaqueStream* stream = nullptr;
  std::uint64_t after = 0;
  bool is_done() const { return stream == nullptr || stream->ended >= after; }
};

}  // namespace

void enqueue(StreamHandle stream, std::function<void()> work) {
  cuda::OpaqueStream* const to = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  to->work.push_back(std::move(work));
  ++to->begun;
  shared().changed.notify_all();
}

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;

extern "C" {

void fake_nccl_change(void (*change)(Control&, void*), void* what) {
  const std::lock_guard held(shared().mutex);
  change(shared().control, what);
  shared().changed.notify_all();
}

std::byte* fake_nccl_reach(const void* data) { return reach(data); }

void fake_nccl_enqueue(StreamHandle stream, void (*work)(void*), void* what) {
  enqueue(stream, [work, what] { work(what); });
}

int cuInit(unsigned) { return kSuccess; }
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
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return has_context() ? kSuccess : kInvalidContext;
}
int cuStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int priority) {
  if (!has_context()) return kInvalidContext;
  if (flags != 1 || priority != -5) return kInvalidValue;  // It is to be of high priority.
  *stream = make_stream();
  return kSuccess;
}
int cuStreamDestroy_v2(StreamHandle stream) {
  {
    const std::lock_guard held(shared().mutex);
    stream->stops = true;
    shared().changed.notify_all();
  }
  stream->thread.join();
  return kSuccess;  // Events may still know it.
}
int cuStreamQuery(StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  const auto* const of = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  if (const int refusal = shared().refusal_of_question()) return refusal;
  return of->ended == of->begun ? shared().control.stream_error : kNotReady;
}
int cuStreamIsCapturing(StreamHandle stream, int* status) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  *status = 0;
  if (stream == nullptr && shared().control.captures) return kStreamCaptureImplicit;
  return shared().control.stream_error;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
int cuStreamWaitEvent(StreamHandle stream, void* event, unsigned) {
  if (!has_context()) return kInvalidContext;
  Event at;
  {
    const std::lock_guard held(shared().mutex);
    if (const int refusal = shared().refusal_on(stream)) return refusal;
    at = *static_cast<Event*>(event);
  }
  enqueue(stream, [at] {
    std::unique_lock held(shared().mutex);
    shared().changed.wait(held, [&] { return at.is_done(); });
  });
  return kSuccess;
}
int cuEventCreate(void** event, unsigned) {
  if (!has_context()) return kInvalidContext;
  *event = new Event;
  return kSuccess;
}
int cuEventRecord(void* event, StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  auto* const of = stream_of(stream);
  const std::lock_guard held(shared().mutex);
  if (const int refusal = shared().refusal_on(stream)) return refusal;
  *static_cast<Event*>(event) = {of, of->begun};
  return kSuccess;
}
int cuEventQuery(void* event) {
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  if (const int refusal = shared().refusal_of_question()) return refusal;
  return static_cast<Event*>(event)->is_done() ? kSuccess : kNotReady;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
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
  if (all.taken + rounded > kDeviceBytes) return kOutOfMemory;
  *pointer = reinterpret_cast<std::uintptr_t>(all.known + all.taken);
  all.devices[all.taken] = current_device();
  all.taken += rounded;
  return kSuccess;
}
int cuMemFree_v2(std::uint64_t) { return has_context() ? kSuccess : kInvalidContext; }
int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, StreamHandle stream) {
  if (!has_context()) return kInvalidContext;
  std::byte* const target = reach(reinterpret_cast<void*>(to));
  const std::byte* const source = reach(reinterpret_cast<const void*>(from));
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
int cuCtxSynchronize() {
  if (!has_context()) return kInvalidContext;
  std::unique_lock held(shared().mutex);
  if (const int refusal = shared().refusal_on(nullptr)) return refusal;
  shared().changed.wait(held, [] {
    return std::ranges::all_of(all_streams(), [](const auto& s) { return s->ended == s->begun; });
  });
  return kSuccess;
}
int cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned flags) {
  constexpr unsigned kPortable = 1;
  if (!has_context()) return kInvalidContext;
  const std::lock_guard held(shared().mutex);
  if (shared().control.refuses_locks || bytes == 0) return kInvalidValue;
  if (flags != kPortable) shared().misused("pages are locked for one device only");
  if (!locked().insert(data).second) return kAlreadyLocked;
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
